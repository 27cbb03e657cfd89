"""Which settings exist: names recorded from the engine's packages, and those of our own plug-in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import assert_never

from orchestrator.model.profile import AbsentSetting, EnvSetting, FlagSetting, PluginSetting, Profile

DATA = Path(__file__).resolve().parent / "data"
PLUGIN = Path(__file__).resolve().parents[1] / "engine" / "sparkyard_engine" / "data" / "settings.json"
PACKAGES = ("sglang", "nccl", "torch")
PLUGIN_TYPES = {"bool": bool, "int": int, "text": str}


@dataclass(frozen=True, slots=True)
class Names:
    """Everything that a profile may set. `plugin` gives the type of each of our own switches."""

    flags: frozenset[str]
    variables: frozenset[str]
    plugin: tuple[tuple[str, str], ...]


@cache
def recorded() -> Names:
    """The lists under `orchestrator/data/`, recorded by `tests/engine/names.py` from the installed packages."""
    lists = [json.loads((DATA / f"{name}-names.json").read_text(encoding="utf-8")) for name in PACKAGES]
    own = json.loads(PLUGIN.read_text(encoding="utf-8"))["settings"]
    return Names(
        frozenset(flag for each in lists for flag in each.get("flags", ())),
        frozenset(name for each in lists for name in each["env"]),
        tuple((setting["name"], setting["type"]) for setting in own),
    )


def problems(profile: Profile, names: Names) -> list[str]:
    """Settings that nothing reads, as `key.path: what is wrong`: a name set in vain is an error. Pure."""
    found = []
    for index, setting in enumerate(profile.settings):
        match setting:
            case FlagSetting(flag=name):
                fault = None if name in names.flags else f"SGLang {profile.engine.version} has no {name}"
            case EnvSetting(env=name):
                fault = None if name in names.variables else f"neither SGLang, NCCL nor torch reads {name}"
            case PluginSetting():
                fault = _plugin_fault(setting, dict(names.plugin))
            case AbsentSetting():
                fault = None
            case _:
                assert_never(setting)
        if fault is not None:
            found.append(f"settings.{index}: {fault}")
    return found


def _plugin_fault(setting: PluginSetting, own: dict[str, str]) -> str | None:
    kind = own.get(setting.plugin)
    if kind is None:
        return f"our plug-in has no {setting.plugin}; it has {', '.join(sorted(own))}"
    if type(setting.value) is not PLUGIN_TYPES[kind]:
        return f"{setting.plugin}: expected {kind}, found {setting.value!r}"
    return None

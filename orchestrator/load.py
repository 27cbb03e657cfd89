"""Read profile and cluster file; every problem is told at once, by file and key path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from orchestrator import names
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.model.frozen import Frozen
from orchestrator.model.plain import clean, found_in
from orchestrator.model.profile import Profile

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
FILE_MAX_BYTES = 1 << 20
"""A cluster of 64 nodes is 20 KiB; anything larger is not one of our files."""

Loaded = TypeVar("Loaded", bound=Frozen)
SETTING_KEYS = ("flag", "env", "plugin", "absent")


def load_profile(name: str) -> Profile:
    """A profile by path, or by the name of one that is shipped. ConfigError lists everything that is wrong."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"} and not path.exists():
        path = PROFILES / f"{name}.yaml"
    if not path.exists():
        shipped = ", ".join(sorted(found.stem for found in PROFILES.glob("*.yaml")))
        raise ConfigError([f"{name}: no such profile; shipped: {shipped}"])
    profile = _load(path, Profile)
    if faults := names.problems(profile, names.recorded()):
        raise ConfigError([f"{path}: {fault}" for fault in faults])
    return profile


def load_cluster(path: Path) -> Cluster:
    """The cluster file. ConfigError lists everything that is wrong, a key file open to others among it."""
    if not path.exists():
        raise ConfigError([f"{path}: no such file; `sparkyard init` writes it, `sparkyard lab` needs none"])
    cluster = _load(path, Cluster)
    problems = [
        f"{path}: nodes.{node.name}.key: {fault}"
        for node in cluster.nodes
        if node.key is not None and (fault := _key_fault(Path(node.key)))
    ]
    if problems:
        raise ConfigError(problems)
    return cluster


def _key_fault(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_IMODE(mode) & 0o077:
        return f"{path} has mode {stat.S_IMODE(mode):o}, expected 600; chmod 600 it"
    return ""


def _load(path: Path, kind: type[Loaded]) -> Loaded:
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise ConfigError([f"{path}: over {FILE_MAX_BYTES:,} bytes"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"]) from None
    try:
        data = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError([f"{path}{where}: {getattr(error, 'problem', None) or error}"]) from None
    except RecursionError:
        raise ConfigError([f"{path}: nested too deeply"]) from None
    except (ValueError, OverflowError) as error:
        raise ConfigError([f"{path}: a number or a date that cannot be read: {error}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: expected keys and values, found {type(data).__name__}"])
    if faults := [f"{path}: {fault}" for fault in _unprintable(data, "")]:
        raise ConfigError(faults)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_problems(path, error, data)) from None


def _unprintable(value: Any, where: str) -> list[str]:
    """Texts that a terminal would obey: YAML lets them in as escapes, and a shared profile is shown to its reader."""
    match value:
        case str():
            what = found_in(value)
            return [f"{where or '(file)'}: holds the control character {what}; take it out"] if what else []
        case dict():
            entries: Iterable[tuple[Any, Any]] = value.items()
        case list():
            entries = enumerate(value)
        case _:
            return []
    found: list[str] = []
    for key, entry in entries:
        name = clean(str(key))
        if name != str(key):
            found.append(f"{where or '(file)'}: the key {name!r} holds a control character; take it out")
        found += _unprintable(entry, f"{where}.{name}" if where else name)
    return found


class _StrictLoader(yaml.SafeLoader):
    """YAML without its surprises: a key twice is an error, and so is an alias (no billion laughs)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not used here", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problems(path: Path, error: ValidationError, data: dict[str, Any]) -> list[str]:
    lines: dict[str, None] = {}
    for fault in error.errors():
        where = [part for part in fault["loc"] if not str(part).endswith("Setting")]
        key = ".".join(str(part) for part in where) or "(file)"
        if where[:1] == ["settings"] and len(where) >= 2:
            entry = data["settings"][where[1]]
            classes = [name for name in SETTING_KEYS if isinstance(entry, dict) and name in entry]
            if len(classes) != 1:
                text = "of no class" if not classes else f"of {len(classes)} classes"
                lines[
                    f"{path}: settings.{where[1]}: a setting {text}: expected one of {', '.join(SETTING_KEYS)}"
                ] = None
                continue
            if not any(str(part).lower() == f"{classes[0]}setting" for part in fault["loc"]):
                continue
        message = fault["msg"].removeprefix("Value error, ")
        if key == "schema" and fault["type"] == "literal_error":
            lines[
                f"{path}: schema: {str(fault['input'])[:80]!r} is another version, this sparkyard reads "
                f"{fault['ctx']['expected']}: use the sparkyard that wrote it, or write it anew (docs/reference.md)"
            ] = None
            continue
        if fault["type"] == "extra_forbidden":
            message = "unknown key"
        if fault["type"] not in {"missing", "extra_forbidden", "value_error"}:
            shown = str(fault["input"])
            message += f" (found {shown[:80]!r})"
        lines[f"{path}: {key}: {message}"] = None
    return list(lines)


def default_cluster_path() -> Path:
    """`cluster.yaml` in the current folder, or what SPARKYARD_CLUSTER names."""
    return Path(os.environ.get("SPARKYARD_CLUSTER", "cluster.yaml"))

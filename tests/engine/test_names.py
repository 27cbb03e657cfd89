"""The recorded names of flags and variables against the installed packages, and against the real argument parser."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from tests.engine.names import DATA, sglang_flags, sglang_variables, torch_variables

PROFILES = Path(__file__).resolve().parents[2] / "profiles"


def listed(package: str, kind: str) -> list[str]:
    return json.loads((DATA / f"{package}-names.json").read_text("utf-8"))[kind]


def test_recorded_names_are_those_of_the_installed_packages() -> None:
    assert listed("sglang", "flags") == sglang_flags()
    assert listed("sglang", "env") == sglang_variables()
    assert listed("torch", "env") == torch_variables()


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_real_parser_accepts_every_flag_of_every_profile(path: Path) -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    words = ["--model-path", "/m", "--gated-launch-port", "1", "--json-model-override-args", "{}"]
    for setting in yaml.safe_load(path.read_text("utf-8"))["settings"]:
        if "flag" in setting:
            words.append(setting["flag"])
            if setting.get("value") is not None:
                words.append(str(setting["value"]))
    parsed, left = parser.parse_known_args(words)
    assert left == []
    assert parsed.model_path == "/m"

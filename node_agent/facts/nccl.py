"""NCCL settings that lie around: its own configuration files, and variables of the whole system.

`/etc/nccl.conf` overrides nothing that is set in the environment, but silently adds what is not.
"""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import DeniedError, Source
from node_agent.facts.text import lines

CONFIG = "/etc/nccl.conf"
ENVIRONMENTS = ("/etc/environment", "/etc/default/nccl")
PROFILES = "/etc/profile.d"
SETTING = re.compile(r"(?:export\s+)?((?:NCCL|GLOO)_[A-Z0-9_]{1,60})=(.{0,200})")


def parse_settings(text: str) -> dict[str, str]:
    """Assignments to NCCL_* and GLOO_* variables; comments and everything else are left out."""
    found = {}
    for item in lines(text):
        match = SETTING.fullmatch(item.strip())
        if match:
            found[match.group(1)] = match.group(2).strip().strip("'\"")
    return found


def read(source: Source) -> dict[str, Any]:
    """`config` is None where there is no nccl.conf."""
    text = source.text(CONFIG)
    system: dict[str, str] = {}
    for path in (*ENVIRONMENTS, *(f"{PROFILES}/{name}" for name in source.names(PROFILES))):
        try:
            system.update(parse_settings(source.text(path) or ""))
        except DeniedError:
            continue
    return {"config": None if text is None else parse_settings(text), "environment": system}


READER = Reader("nccl", read)

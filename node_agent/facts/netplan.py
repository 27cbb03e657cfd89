"""Netplan files: which of them name a ConnectX-7 interface, and who may read them."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import lines

FOLDER = "/etc/netplan"
MAX_FILES = 50
INTERFACE = re.compile(r"\b(en[pP][0-9A-Za-z]{1,20}np\d|ib[pP][0-9A-Za-z]{1,20})\b")


def parse_names(text: str) -> list[str]:
    """Interfaces with a port suffix that the file names outside comments."""
    names: set[str] = set()
    for item in lines(text):
        names.update(INTERFACE.findall(item.partition("#")[0]))
    return sorted(names)


def read_modes(source: Source) -> list[dict[str, Any]] | None:
    """Files and their permission bits; None without netplan."""
    names = [name for name in source.names(FOLDER) if name.endswith(".yaml")]
    found = [
        {"path": f"{FOLDER}/{name}", "mode": source.mode(f"{FOLDER}/{name}")} for name in names[:MAX_FILES]
    ]
    return found or None


def read_contents(source: Source) -> list[dict[str, Any]] | None:
    """Files and the link interfaces that they name. DeniedError for an ordinary user: they are mode 600."""
    names = [name for name in source.names(FOLDER) if name.endswith(".yaml")]
    found = []
    for name in names[:MAX_FILES]:
        text = source.text(f"{FOLDER}/{name}") or ""
        found.append({"path": f"{FOLDER}/{name}", "interfaces": parse_names(text)})
    return found or None


MODES = Reader("netplan", read_modes)
CONTENTS = Reader("netplan_contents", read_contents, need="root (netplan files are mode 600)")

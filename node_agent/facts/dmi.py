"""What the maker wrote into the machine. Names only: serial numbers need root and tell nothing."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line

FIELDS = {
    "vendor": "sys_vendor",
    "product": "product_name",
    "version": "product_version",
    "board": "board_name",
    "bios": "bios_version",
    "bios_date": "bios_date",
}


def read(source: Source) -> dict[str, Any] | None:
    """None on machines without DMI."""
    values = {key: line(source.text(f"/sys/class/dmi/id/{name}")) for key, name in FIELDS.items()}
    return values if any(values.values()) else None


READER = Reader("dmi", read)

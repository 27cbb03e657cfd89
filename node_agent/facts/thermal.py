"""Thermal zones of ACPI."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, whole

ROOT = "/sys/class/thermal"


def read(source: Source) -> list[dict[str, Any]] | None:
    """One entry for each zone that can be read; None without zones."""
    zones = []
    for name in source.names(ROOT):
        if not name.startswith("thermal_zone"):
            continue
        milli = whole(source.text(f"{ROOT}/{name}/temp"))
        if milli is not None:
            zones.append(
                {"zone": name, "type": line(source.text(f"{ROOT}/{name}/type")), "celsius": milli / 1000}
            )
    return zones or None


READER = Reader("thermal", read)

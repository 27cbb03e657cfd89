"""CPU clock policies."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, whole

ROOT = "/sys/devices/system/cpu/cpufreq"


def read(source: Source) -> list[dict[str, Any]] | None:
    """None where the kernel does not scale the CPU clock."""
    policies = []
    for name in source.names(ROOT):
        if not name.startswith("policy"):
            continue
        folder = f"{ROOT}/{name}"
        policies.append(
            {
                "policy": name,
                "max_khz": whole(source.text(f"{folder}/scaling_max_freq")),
                "current_khz": whole(source.text(f"{folder}/scaling_cur_freq")),
                "hardware_max_khz": whole(source.text(f"{folder}/cpuinfo_max_freq")),
                "governor": line(source.text(f"{folder}/scaling_governor")),
            }
        )
    return policies or None


READER = Reader("cpu", read)

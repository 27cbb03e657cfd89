"""Power rails and limits of the spark_hwmon driver (`spbm`); None where the driver is not loaded."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, whole

HWMON = "/sys/class/hwmon"
PLATFORM = "/sys/bus/platform/devices/NVDA8800:00"  # where another tool reads the status attributes
RAILS = 14


def read(source: Source) -> dict[str, Any] | None:
    """Always resolved by label: the numbers of hwmon devices and of rails differ between kernels."""
    for name in source.names(HWMON):
        folder = f"{HWMON}/{name}"
        if not (line(source.text(f"{folder}/name")) or "").startswith("spbm"):
            continue
        rails, caps = {}, {}
        for index in range(1, RAILS + 1):
            label = line(source.text(f"{folder}/power{index}_label"))
            watts = whole(source.text(f"{folder}/power{index}_input"))
            cap = whole(source.text(f"{folder}/power{index}_cap"))
            if label and watts is not None:
                rails[label[:40]] = watts / 1e6
            if label and cap is not None:
                caps[label[:40]] = cap / 1e6
        status = {
            key: whole(source.text(f"{folder}/{key}") or source.text(f"{PLATFORM}/{key}"))
            for key in ("prochot", "pl_level")
        }
        return {"watts": rails, "cap_watts": caps, **status}
    return None


READER = Reader("rails", read)

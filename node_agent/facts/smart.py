"""Health of the NVMe drives, from their SMART log."""

from __future__ import annotations

import json
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import MissingToolError, Source, UnreadableError

COMMAND_TIMEOUT_S = 4.0
CLASS = "/sys/class/nvme"
FIELDS = ("critical_warning", "media_errors", "warning_temp_time", "critical_comp_time", "percent_used")


def parse_log(text: str) -> dict[str, int]:
    """`nvme smart-log -o json`: the counters of `FIELDS` that it has.

    Raises UnreadableError when it is not JSON.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"nvme smart-log: not JSON: {str(error)[:100]}") from error
    if not isinstance(data, dict):
        raise UnreadableError("nvme smart-log: not an object")
    found = {}
    for name in FIELDS:
        value = data.get(name)
        if isinstance(value, dict):  # newer nvme-cli splits critical_warning into its bits
            value = value.get("value")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
            found[name] = value
    return found


def read(source: Source) -> dict[str, Any] | None:
    """Drive → counters; None without NVMe drives. MissingToolError without nvme-cli."""
    drives = source.names(CLASS)
    if not drives:
        return None
    found = {}
    for name in drives:
        ran = source.run(
            "nvme", "smart-log", f"/dev/{name}", "-o", "json", timeout_s=COMMAND_TIMEOUT_S, privileged=True
        )
        if ran is None:
            raise MissingToolError("nvme: not installed (package nvme-cli)")
        if ran.status != 0:
            raise UnreadableError(f"nvme smart-log /dev/{name}: {ran.err.strip()[:200]}")
        found[name] = parse_log(ran.out)
    return found


READER = Reader("smart", read, need="root (nvme smart-log)")

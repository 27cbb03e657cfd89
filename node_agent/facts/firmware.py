"""Firmware versions and failed updates, as fwupd knows them."""

from __future__ import annotations

import json
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source, UnreadableError
from node_agent.facts.text import MAX_TEXT

DEVICES_TIMEOUT_S = 8.0
MAX_DEVICES = 100
FAILED_STATES = (3, 4, "failed", "failed-transient")  # FwupdUpdateState: 3 failed, 4 failed-transient


def parse_devices(text: str) -> list[dict[str, Any]]:
    """`fwupdmgr get-devices --json` or `get-history --json`.

    Raises UnreadableError when it is not the JSON that fwupd writes.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"fwupdmgr: not JSON: {str(error)[:100]}") from error
    devices = data.get("Devices") if isinstance(data, dict) else None
    if not isinstance(devices, list):
        raise UnreadableError("fwupdmgr: no list Devices")
    found = []
    for item in devices[:MAX_DEVICES]:
        if not isinstance(item, dict) or not isinstance(item.get("Name"), str):
            continue
        state = item.get("UpdateState")
        reason = item.get("UpdateError")
        found.append(
            {
                "name": item["Name"][:200],
                "version": str(item["Version"])[:100] if item.get("Version") is not None else None,
                "vendor": str(item.get("Vendor", ""))[:100],
                "failed": str(reason or "update failed")[:MAX_TEXT] if state in FAILED_STATES else None,
            }
        )
    return found


def read(source: Source) -> dict[str, Any] | None:
    """None where fwupd is not installed. Needs no root."""
    devices = source.run("fwupdmgr", "get-devices", "--json", timeout_s=DEVICES_TIMEOUT_S)
    if devices is None:
        return None
    if devices.status != 0 and not devices.out.strip():
        raise UnreadableError(
            f"fwupdmgr get-devices: {devices.err.strip()[:200] or f'status {devices.status}'}"
        )
    history = source.run("fwupdmgr", "get-history", "--json", timeout_s=DEVICES_TIMEOUT_S)
    past = parse_devices(history.out) if history and history.status == 0 and history.out.strip() else []
    return {
        "devices": parse_devices(devices.out),
        "failures": [f"{item['name']}: {item['failed']}" for item in past if item["failed"]],
    }


READER = Reader("firmware", read, timeout_s=20.0)

"""Operating system and DGX release, and whether an over-the-air update ended half way."""

from __future__ import annotations

import re
import shlex
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, lines

OTA_CHECK = "/opt/nvidia/spark-ota-check/check_ota_status.py"
OTA_TIMEOUT_S = 5.0
AUDIT_TIMEOUT_S = 5.0


def parse_assignments(text: str) -> dict[str, str]:
    """Shell assignments, one a line; a name that is given again replaces the earlier one.

    /etc/dgx-release repeats the OTA pair after each update: the last one is what is installed.
    """
    values = {}
    for item in lines(text):
        name, equals, value = item.strip().partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w{0,63}", name):
            continue
        try:
            parts = shlex.split(value)
        except ValueError:
            continue
        values[name] = " ".join(parts)[:200]
    return values


def parse_score(text: str) -> int | None:
    """The torn score that the OTA check prints; 0 is good."""
    found = re.search(r"score\D{0,20}(\d{1,6})", text, re.IGNORECASE)
    return int(found.group(1)) if found else None


def parse_audit(text: str) -> list[str]:
    """Packages that `dpkg --audit` complains of: its indented lines."""
    return [item.strip().split()[0][:100] for item in lines(text) if item.startswith(" ") and item.strip()][
        :50
    ]


def read(source: Source) -> dict[str, Any]:
    """Release facts."""
    system = parse_assignments(source.text("/etc/os-release") or "")
    dgx = parse_assignments(source.text("/etc/dgx-release") or "")
    check = source.run("python3", OTA_CHECK, timeout_s=OTA_TIMEOUT_S) if source.size(OTA_CHECK) else None
    audit = source.run("dpkg", "--audit", timeout_s=AUDIT_TIMEOUT_S)
    return {
        "system": system.get("PRETTY_NAME"),
        "dgx": dgx.get("DGX_SWBUILD_VERSION"),
        "ota": dgx.get("DGX_OTA_VERSION"),
        "fastos": line(source.text("/etc/fastos-release")),
        "ota_score": parse_score(check.out) if check else None,
        "half_installed": parse_audit(audit.out) if audit else [],
    }


READER = Reader("release", read)

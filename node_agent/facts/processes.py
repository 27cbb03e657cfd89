"""Processes that matter to an engine: those that kill others for memory, and those that hold much of it."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.gpu import container_of
from node_agent.facts.reader import Reader
from node_agent.facts.source import DeniedError, Source
from node_agent.facts.text import MAX_TEXT

KILLERS = ("earlyoom", "systemd-oomd", "dgx-anti-oom", "nohang")
HOLDERS = (
    "ollama",
    "comfyui",
    "jupyter",
    "llama-server",
    "vllm",
    "sglang",
    "text-generation",
    "lmstudio",
    "lm-studio",
    "open-webui",
    "tritonserver",
    "trtllm",
)
MAX_PROCESSES = 20000
PAGE_BYTES = 4096
TEXT_BYTES = 300


def kind_of(command: str) -> str | None:
    """`killer`, `holder` or None, by the program or script that a command line runs."""
    words = [part.rpartition("/")[2].lower() for part in command.split()[:4]]
    folders = command.lower().split()[:4]
    if any(word.startswith(name) for word in words[:2] for name in KILLERS):
        return "killer"
    if any(name in word for word in words for name in HOLDERS) or any("comfyui/" in part for part in folders):
        return "holder"
    return None


def read(source: Source) -> list[dict[str, Any]]:
    """Only processes of the two kinds; command lines are cut, for they can carry secrets."""
    found = []
    for name in source.names("/proc")[:MAX_PROCESSES]:
        if not name.isdecimal():
            continue
        try:
            raw = source.text(f"/proc/{name}/cmdline") or ""
            command = raw.replace("\0", " ").strip()[:MAX_TEXT]
            kind = kind_of(command)
            if kind is None:
                continue
            status = source.text(f"/proc/{name}/status") or ""
            resident = re.search(r"^VmRSS:\s+(\d{1,15}) kB", status, re.MULTILINE)
            found.append(
                {
                    "pid": int(name),
                    "kind": kind,
                    "command": " ".join(command.split()[:3])[:TEXT_BYTES],
                    "resident_bytes": int(resident.group(1)) * 1024 if resident else 0,
                    "container": container_of(source.text(f"/proc/{name}/cgroup") or ""),
                }
            )
        except DeniedError:
            continue
    return found[:100]


READER = Reader("processes", read, hardware=False)

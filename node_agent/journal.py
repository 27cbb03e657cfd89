"""A rank's engine log: its last lines with their times, from a time on, and what it writes from now on."""

from __future__ import annotations

import calendar
import re
import threading
import time
from pathlib import Path
from typing import Any

from node_agent import look, process
from node_agent.actions import containers
from node_agent.files import read_json, tail
from node_agent.home import Home
from node_agent.wire import Refused, Report

LINES_MAX = 5000
READ_BYTES = 2 << 20
"""Some 15,000 lines; the answer is one line of at most 8 MiB on the channel."""
FOLLOW_EVERY_S = 0.3
ALIVE_EVERY_S = 5.0
"""A container's life is asked of the Docker engine, which costs more than a look at /proc."""
_STAMP = re.compile(r"^\[(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
"""SGLang begins a line so; lines without it (tracebacks, bars) belong to the one before."""


def read(home: Home, args: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    """Last lines of a rank's engine log; with `follow`, new lines as progress until cancelled.

    With `since_unix_s` only lines from then on. `times` has the unix seconds of each line, null where none is known.
    """
    folder = home.rank_folder(args["deployment"], int(args["generation"]), int(args["rank"]))
    path = folder / "engine.log"
    if not folder.is_dir():
        raise Refused(f"rank {args['rank']} of generation {args['generation']} was never started here")
    found = tail(path, LINES_MAX, max_bytes=READ_BYTES)
    dated = times(found, _offset_s(folder))
    since = float(args.get("since_unix_s") or 0.0)
    if _started(folder) < since:
        kept = [place for place, at in enumerate(dated) if at is not None and at >= since]
        found, dated = [found[place] for place in kept], [dated[place] for place in kept]
    most = min(int(args["lines"]), LINES_MAX)
    first = {"lines": found[-most:], "times": dated[-most:]}
    if not args.get("follow"):
        return first
    report(first)
    _follow(home, path, folder, report, stop)
    return {"lines": [], "times": []}


def times(lines: list[str], offset_s: int) -> list[float | None]:
    """Unix seconds of each line: its own stamp, else that of the line before. `offset_s`: local time minus UTC."""
    found: list[float | None] = []
    last = None
    for line in lines:
        if match := _STAMP.match(line):
            year, month, day, hour, minute, second = (int(part) for part in match.groups())
            last = calendar.timegm((year, month, day, hour, minute, second)) - float(offset_s)
        found.append(last)
    return found


def _offset_s(folder: Path) -> int:
    """The guard runs beside the engine, so its clock's zone is the one of the log; this node's own is a guess."""
    told = (read_json(folder / "status.json") or {}).get("utc_offset_s")
    return told if isinstance(told, int) else time.localtime().tm_gmtoff


def _started(folder: Path) -> float:
    return float((read_json(folder / "spec.json") or {}).get("started_unix_s", 0.0))


def _follow(home: Home, path: Path, folder: Path, report: Report, stop: threading.Event) -> None:
    offset = path.stat().st_size if path.exists() else 0
    rest, asked_s = b"", time.monotonic()
    while not stop.wait(FOLLOW_EVERY_S):
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            offset = 0
        if size > offset:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(1 << 20)
            offset += len(data)
            *lines, rest = (rest + data).split(b"\n")
            report({"lines": [line.decode("utf-8", "replace")[:2000] for line in lines]})
        elif time.monotonic() - asked_s > ALIVE_EVERY_S:
            asked_s = time.monotonic()
            if not _alive(home, folder):
                return


def _alive(home: Home, folder: Path) -> bool:
    spec = read_json(folder / "spec.json") or {}
    if spec.get("image"):
        return containers.key(spec["body"]) in look.contained_ranks(home)
    return process.alive(folder / "pid.json") is not None

"""Runs the load generator that the controller brings along: `bench` measures from a node that is not the head."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from typing import Any

from node_agent.wire import Refused, Report

POLL_S = 0.2


def run(args: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    """One plan: `program` runs with `archive` and `plan` on its standard input, its lines become progress.

    The generator ends when its input closes, so it never outlives the agent.
    """
    content = base64.b64decode(args["archive"]) + json.dumps(args["plan"]).encode() + b"\n"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", args["program"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        ended = threading.Event()
        threading.Thread(target=_end_on, args=(stop, ended, child), daemon=True).start()
        try:
            return _talk(child, content, report)
        finally:
            ended.set()
            child.kill()


def _talk(child: subprocess.Popen[bytes], content: bytes, report: Report) -> dict[str, Any]:
    if child.stdin is None or child.stdout is None:
        raise Refused("the load generator has no pipes")
    try:
        child.stdin.write(content)
        child.stdin.flush()
    except OSError as error:
        raise Refused(f"the load generator did not take its plan: {error.strerror}") from None
    for line in child.stdout:
        message = json.loads(line)
        if "failed" in message:
            raise Refused(str(message["failed"]))
        if "end" in message:
            return {"end": message["end"]}
        report(message)
    raise Refused("the load generator ended before its answer")


def _end_on(stop: threading.Event, ended: threading.Event, child: subprocess.Popen[bytes]) -> None:
    while not ended.wait(POLL_S):
        if stop.is_set():
            child.kill()
            return

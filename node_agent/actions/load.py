"""Runs the load generator that the controller brings along: `bench` measures from a node that is not the head.

The generator is kept between plans, because starting it takes a second; it ends when its input closes, so it never
outlives the agent, and the agent ends with its channel.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from typing import Any

from node_agent.wire import Refused, Report

POLL_S = 0.2


class Generator:
    """One running generator; one plan at a time."""

    def __init__(self, program: str, archive: str) -> None:
        self.lock = threading.Lock()
        self._archive = archive
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._write(base64.b64decode(archive))

    def serves(self, archive: str) -> bool:
        """Whether it still runs, and is this archive's."""
        return self._archive == archive and self._child.poll() is None

    def end(self) -> None:
        """Kill it; also in the middle of a plan."""
        self._child.kill()
        self._child.wait()

    def run(self, plan: dict[str, Any], report: Report) -> dict[str, Any]:
        """Its last message; the others are reported."""
        self._write(json.dumps(plan).encode() + b"\n")
        for line in self._child.stdout or ():
            message = json.loads(line)
            if "failed" in message:
                raise Refused(str(message["failed"]))
            if "end" in message:
                return {"end": message["end"]}
            report(message)
        raise Refused("the load generator ended before its answer")

    def _write(self, data: bytes) -> None:
        if self._child.stdin is None:
            raise Refused("the load generator has no pipes")
        try:
            self._child.stdin.write(data)
            self._child.stdin.flush()
        except OSError as error:
            raise Refused(f"the load generator does not take its plan: {error.strerror}") from None


class Keeper:
    """The generator of this agent, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Generator | None = None

    def generator(self, program: str, archive: str) -> Generator:
        """The running one of this archive, or a new one."""
        with self._lock:
            if self._kept is None or not self._kept.serves(archive):
                if self._kept is not None:
                    self._kept.end()
                self._kept = Generator(program, archive)
            return self._kept


KEEPER = Keeper()


def run(args: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    """One plan: `program` runs with `archive` on its standard input, then `plan`; its lines become progress."""
    while True:
        generator = KEEPER.generator(args["program"], args["archive"])
        with generator.lock:
            if generator.serves(
                args["archive"]
            ):  # not so if the plan before was stopped while this one waited
                return _run(generator, args["plan"], report, stop)


def _run(generator: Generator, plan: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    ended = threading.Event()
    watcher = threading.Thread(target=_end_on, args=(stop, ended, generator), daemon=True)
    watcher.start()
    try:
        return generator.run(plan, report)
    finally:
        ended.set()
        watcher.join()


def _end_on(stop: threading.Event, ended: threading.Event, generator: Generator) -> None:
    while not ended.wait(POLL_S):
        if stop.is_set():
            generator.end()
            return

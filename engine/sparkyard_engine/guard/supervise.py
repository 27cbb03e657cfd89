"""The guard's loop: one queue of things that happened, one thread that decides."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from sparkyard_engine.files import read_json, write_json
from sparkyard_engine.guard import proof as proofs
from sparkyard_engine.guard import signs, status, tree
from sparkyard_engine.guard.evidence import stacks
from sparkyard_engine.guard.output import Output, rotating
from sparkyard_engine.guard.probes import Memory, watch_memory, watch_ports
from sparkyard_engine.guard.signs import Phase, Sign
from sparkyard_engine.guard.status import End, Moment, Reason
from sparkyard_engine.rankspec import SPEC_VARIABLE, RankSpec, floor_bytes

STATUS_PERIOD_S = 1.0
ENGRAM_FILE = "engram.json"  # the reader's counters, written by the plug-in
ENGRAM_LIMIT_BYTES = 64 << 10
THREAD_JOIN_S = 5.0  # after the tree is dead: time for the last lines of output
SECRET_LIMIT_BYTES = 4096
BASE_ENVIRONMENT = ("PATH", "HOME", "LANG")  # all that the engine inherits; the rest stands in the spec


@dataclass(frozen=True, slots=True)
class Seen:
    """A line or a port spoke of the boot."""

    sign: Sign


@dataclass(frozen=True, slots=True)
class Floor:
    """Memory fell below the floor; the thread that saw it is killing the tree."""

    available_bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody asked us to stop."""

    signal_name: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """At least one process can be reaped."""


Happened = Seen | Floor | Stop | ChildEnded


class Guard:
    """Supervises one engine. `run` returns the exit status: 0 stopped or ended well, 1 otherwise."""

    def __init__(self, spec: RankSpec, spec_path: Path) -> None:
        """Raises OSError when the rank's folder cannot be written."""
        self._spec = spec
        self._spec_path = spec_path
        self._queue: queue.SimpleQueue[Happened] = (
            queue.SimpleQueue()
        )  # its `put` may run in a signal handler
        self._over = threading.Event()
        self._memory = Memory.now()
        self._floor_bytes = floor_bytes(spec, self._memory.available_bytes)
        self._phase = Phase.STARTING
        self._phases = {Phase.STARTING: time.time()}
        self._progress = Sign()
        self._engine_pid: int | None = None
        self._output: Output | None = None
        self._proof: dict[str, Any] | None = None
        self._why: tuple[Reason, str] | None = None
        self._kill_at_s: float | None = None
        self._secrets = _secrets(spec)
        self._log = _logger(spec)
        for stale in (proofs.FILE, ENGRAM_FILE):
            (spec.directory / stale).unlink(missing_ok=True)

    def run(self) -> int:
        """Start, watch, end, report."""
        tree.adopt_orphans()
        tree.stay_in_memory()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._queue.put(Stop(signal.Signals(number).name)))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: self._queue.put(ChildEnded()))
        self._write_status()
        try:
            engine_pid, output = self._start_engine()
        except OSError as error:
            return self._finish(End(Reason.SPAWN_FAILED, f"{self._spec.argv[0]}: {error.strerror}", None, ()))
        threads = self._start_threads(output)
        exit_code = self._watch(engine_pid, output)
        self._over.set()
        for thread in threads:
            thread.join(THREAD_JOIN_S)
        reason, detail = self._why or status.own_end(exit_code)
        return self._finish(End(reason, detail, exit_code, output.tail()))

    def _start_engine(self) -> tuple[int, Output]:
        spec = self._spec
        read_fd, write_fd = os.pipe()
        env = {name: os.environ[name] for name in BASE_ENVIRONMENT if name in os.environ}
        env |= {**spec.env, SPEC_VARIABLE: str(self._spec_path)}
        try:
            self._engine_pid = engine_pid = tree.start(spec.argv, env, write_fd)
        finally:
            os.close(write_fd)
        self._log.info("rank %d of %d: engine started, pid %d", spec.rank, spec.tp, engine_pid)
        clean = partial(signs.redact, secrets=self._secrets)
        self._output = Output(read_fd, spec.directory / "engine.log", clean, self._on_line)
        return engine_pid, self._output

    def _start_threads(self, output: Output) -> list[threading.Thread]:
        spec, over = self._spec, self._over
        work: dict[str, Callable[[], None]] = {
            "output": output.pump,
            "memory": partial(watch_memory, self._memory, self._floor_bytes, over, self._on_floor),
            "ports": partial(
                watch_ports, spec.rank, spec.api_port, spec.gate_port, over, self._on_joined, self._on_ready
            ),
        }
        threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in work.items()]
        for thread in threads:
            thread.start()
        return threads

    # The next four run in threads; each only puts something into the queue (and kills, where it must).

    def _on_line(self, line: str) -> None:
        if (sign := signs.read(line)) is not None:
            self._queue.put(Seen(sign))

    def _on_joined(self) -> None:
        self._queue.put(Seen(Sign(phase=Phase.JOINED)))

    def _on_ready(self) -> None:
        self._queue.put(Seen(Sign(phase=Phase.READY)))

    def _on_floor(self, available_bytes: int) -> None:
        self._queue.put(Floor(available_bytes))  # first, so that the reason is known before the death is seen
        if self._engine_pid is not None:
            tree.kill(self._engine_pid)

    def _watch(self, engine_pid: int, output: Output) -> int:
        """The loop. Returns the engine's exit code, negative for a signal, once no process is left."""
        exit_code: int | None = None
        write_at_s = 0.0
        while exit_code is None:
            due_s = min(write_at_s, self._kill_at_s or write_at_s)
            with contextlib.suppress(queue.Empty):
                exit_code = self._take(
                    self._queue.get(timeout=max(0.0, due_s - time.monotonic())), engine_pid
                )
                write_at_s = 0.0
            now_s = time.monotonic()
            if self._kill_at_s is not None and now_s >= self._kill_at_s:
                self._end_now(
                    Reason.STOPPED, f"killed {self._spec.grace_s:g} s after the request", engine_pid
                )
            silent_s = time.time() - output.last_line_unix_s
            if signs.later(Phase.READY, self._phase) and silent_s > self._spec.silence_limit_s:
                self._hung(silent_s, engine_pid)
            if now_s >= write_at_s:
                self._write_status()
                write_at_s = now_s + STATUS_PERIOD_S
        tree.kill(engine_pid)
        tree.reap()
        return exit_code

    def _take(self, happened: Happened, engine_pid: int) -> int | None:
        """Act on one thing; the engine's exit code when it was its end."""
        match happened:
            case Seen(sign):
                self._advance(sign, engine_pid)
            case Floor(available_bytes):
                self._decide(
                    Reason.MEMORY_FLOOR,
                    f"MemAvailable was {available_bytes} B, below the floor of {self._floor_bytes} B: engine killed",
                )
            case Stop(name):
                self._stop(name, engine_pid)
            case ChildEnded():
                return tree.reap().get(engine_pid)
            case _:
                assert_never(happened)
        return None

    def _advance(self, sign: Sign, engine_pid: int) -> None:
        known = self._progress
        self._progress = replace(
            known,
            kv_tokens=known.kv_tokens if sign.kv_tokens is None else sign.kv_tokens,
            # the main model loads first; the draft's figure comes later and is another one
            weights_bytes=sign.weights_bytes if known.weights_bytes is None else known.weights_bytes,
        )
        if sign.phase is None or not signs.later(sign.phase, self._phase):
            return
        if sign.phase is Phase.READY:
            pids = {process.pid for process in tree.living()}
            if engine_pid not in pids:
                return  # it has ended since it wrote that line: its exit says why
            self._proof = read_json(self._spec.directory / proofs.FILE, proofs.LIMIT_BYTES)
            if (why := proofs.missing(self._spec, self._proof, pids)) is not None:
                self._end_now(Reason.PLUGIN_MISSING, why, engine_pid)
                return
        self._enter(sign.phase)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._phases.setdefault(phase, time.time())
        self._log.info("phase %s", phase.value)

    def _stop(self, name: str, engine_pid: int) -> None:
        if self._kill_at_s is not None:
            return
        self._decide(Reason.STOPPED, f"{name} received")
        self._enter(Phase.DRAINING)
        self._kill_at_s = time.monotonic() + self._spec.grace_s
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine_pid, signal.SIGTERM)  # rank 0 drains; SGLang's other ranks only log it

    def _hung(self, silent_s: float, engine_pid: int) -> None:
        for line in stacks(tree.living(), Path(self._spec.argv[0]).parent):
            self._log.info("%s", signs.redact(line, self._secrets))
        self._end_now(
            Reason.HANG, f"no line of output for {silent_s:.1f} s in phase {self._phase.value}", engine_pid
        )

    def _decide(self, reason: Reason, detail: str) -> None:
        """Record why the rank ends; the first reason stays."""
        self._log.info("%s: %s", reason.value, detail)
        if self._why is None:
            self._why = (reason, detail)
        elif self._why[0] is reason:
            self._why = (reason, f"{self._why[1]}; {detail}")

    def _end_now(self, reason: Reason, detail: str, engine_pid: int) -> None:
        self._decide(reason, detail)
        self._kill_at_s = None
        self._phase = Phase.DRAINING
        tree.kill(engine_pid)

    def _finish(self, end: End) -> int:
        self._engine_pid = None
        self._enter(Phase.ENDED)
        self._log.info("ended: %s: %s", end.reason.value, end.detail)
        self._write_status(end)
        return 0 if end.is_good() else 1

    def _write_status(self, end: End | None = None) -> None:
        spec = self._spec
        if self._proof is None:
            self._proof = read_json(spec.directory / proofs.FILE, proofs.LIMIT_BYTES)
        moment = Moment(
            guard_pid=os.getpid(),
            engine_pid=self._engine_pid,
            phase=self._phase,
            phases=self._phases,
            progress=self._progress,
            last_log_unix_s=self._output.last_line_unix_s if self._output else None,
            proof=self._proof,
            engram=read_json(spec.directory / ENGRAM_FILE, ENGRAM_LIMIT_BYTES),
            end=end,
        )
        try:
            write_json(spec.directory / status.FILE, status.document(spec, self._memory, moment, time.time()))
        except OSError as error:  # a full disk must not end a serving rank; the controller sees a stale file
            self._log.info("%s: %s", status.FILE, error.strerror)


def _logger(spec: RankSpec) -> logging.Logger:
    """The guard's own log: a bounded file beside the engine's, and standard error (the container's log)."""
    logger = logging.getLogger(f"{__name__}.{spec.rank}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for each in (rotating(spec.directory / "guard.log"), logging.StreamHandler(sys.stderr)):
        each.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(each)
    return logger


def _secrets(spec: RankSpec) -> tuple[str, ...]:
    """Contents of the plug-in's secret files (settings named `*_file`): they stay out of logs."""
    settings = spec.plugin.get("settings")
    found = []
    for name, path in settings.items() if isinstance(settings, dict) else ():
        if name.endswith("_file") and isinstance(path, str):
            with contextlib.suppress(OSError), Path(path).open("rb") as file:
                found.append(file.read(SECRET_LIMIT_BYTES).decode("utf-8", "replace").strip())
    return tuple(secret for secret in found if secret)

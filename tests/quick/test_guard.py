"""The guard against real processes: small programs stand in for the engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine import rankspec
from sparkyard_engine.guard import signs
from sparkyard_engine.guard.proof import missing
from sparkyard_engine.guard.signs import Phase, Sign

ENGINE = Path(__file__).resolve().parents[2] / "engine"
MIB = 1 << 20
DEADLINE_S = 15.0  # for anything that takes well under a second on an idle machine

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(15, lambda *_: print('waiting for rank 0', flush=True))\n" + SLEEP
)
DRAINS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0))\n" + SLEEP
READY = "print('The server is fired up and ready to roll!', flush=True)\n" + SLEEP


def spec_value(folder: Path, program: str, **changes: Any) -> dict[str, Any]:
    """A rank spec whose engine is the Python program."""
    value = {
        "schema": rankspec.SCHEMA,
        "deployment": "test",
        "generation": 3,
        "rank": 0,
        "tp": 3,
        "argv": [sys.executable, "-c", program],
        "env": {},
        "directory": str(folder / "rank"),
        "memory_floor_bytes": 0,
        "grace_s": 10.0,
        "api_port": None,
        "gate_port": None,
        "metrics_port": None,
        "plugin": {},
    }
    return value | changes


class Running:
    """A guard process and its status file."""

    def __init__(self, folder: Path, program: str, changes: dict[str, Any]) -> None:
        self.value = spec_value(folder, program, **changes)
        self.directory = Path(self.value["directory"])
        path = folder / "spec.json"
        path.write_text(json.dumps(self.value))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparkyard_engine.guard", str(path)],
            env={**os.environ, "PYTHONPATH": str(ENGINE), "NOT_FOR_THE_ENGINE": "1"},
            stderr=subprocess.PIPE,
        )

    def status(self) -> dict[str, Any]:
        path = self.directory / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            if (status := self.status()) and holds(status):
                return status
            time.sleep(0.05)
        pytest.fail(f"not seen within {DEADLINE_S} s: {self.status()}")

    def engine_says(self, text: str) -> None:
        log = self.directory / "engine.log"
        self.until(lambda _: log.exists() and text in log.read_text())

    def engine_pid(self) -> int:
        """The status file is written a moment after the engine's first line."""
        return self.until(lambda status: status.get("engine_pid"))["engine_pid"]

    def ended(self) -> dict[str, Any]:
        self.process.wait(DEADLINE_S)
        return self.status()["ended"]


@contextmanager
def guard(folder: Path, program: str, **changes: Any) -> Iterator[Running]:
    running = Running(folder, program, changes)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(DEADLINE_S)
        running.process.stderr.close()


def test_a_memory_hog_is_killed_at_the_floor(tmp_path: Path) -> None:
    hog = (
        "import time; print('up', flush=True); time.sleep(1)\n"
        "kept = []\nfor _ in range(40):\n    kept.append(bytearray(b'x') * (32 << 20)); time.sleep(0.02)\n"
        "time.sleep(60)"
    )
    floor = psutil.virtual_memory().available - 512 * MIB
    with guard(tmp_path, hog, memory_floor_bytes=floor) as running:
        deadline_s = time.monotonic() + DEADLINE_S
        while psutil.virtual_memory().available >= floor and time.monotonic() < deadline_s:
            time.sleep(0.02)
        crossed_s = time.monotonic()
        engine_pid = running.engine_pid()
        while psutil.pid_exists(engine_pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        took_s = time.monotonic() - crossed_s
        ended = running.ended()
    print(
        f"killed {took_s:.2f} s after MemAvailable crossed the floor"
    )  # promised: 1 s; on a busy machine only shown
    assert ended["reason"] == "memory_floor"
    assert f"below the floor of {floor} B" in ended["detail"]
    assert ended["signal"] == signal.SIGKILL
    assert ended["log_tail"] == ["up"]
    assert (running.directory / "engine.log").read_text() == "up\n"
    assert running.status()["memory_low_water_bytes"] < floor


def test_the_whole_tree_dies_even_what_left_the_session(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "child = subprocess.Popen(sleep, start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid(); print('orphan', os.getpid(), flush=True); time.sleep(60)\n"
        "print('detached', child.pid, flush=True); time.sleep(0.5); sys.exit(7)"
    )
    with guard(tmp_path, program) as running:
        ended = running.ended()
    assert (ended["reason"], ended["exit_code"], ended["signal"]) == ("engine_exit", 7, None)
    pids = [int(line.split()[1]) for line in ended["log_tail"]]
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_drain_on_rank_0_is_forwarded_and_awaited(tmp_path: Path) -> None:
    with guard(tmp_path, DRAINS) as running:
        running.engine_says("up")
        running.process.send_signal(signal.SIGTERM)
        ended = running.ended()
    assert (ended["reason"], ended["exit_code"], running.process.returncode) == ("stopped", 0, 0)
    assert {"starting", "draining", "ended"} == set(running.status()["phases"])


def test_another_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with guard(tmp_path, STUBBORN, rank=2, grace_s=0.7) as running:
        running.engine_says("up")
        asked_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        ended = running.ended()
    assert 0.6 < time.monotonic() - asked_s < 5
    assert (ended["reason"], ended["signal"], running.process.returncode) == ("stopped", signal.SIGKILL, 0)
    assert ended["detail"] == "SIGTERM received; killed 0.7 s after the request"
    assert ended["log_tail"] == ["up", "waiting for rank 0"]


def test_a_killed_engine_and_a_crash_have_reasons_of_their_own(tmp_path: Path) -> None:
    with guard(tmp_path, SLEEP) as running:
        running.engine_says("up")
        os.kill(running.engine_pid(), signal.SIGKILL)
        killed = running.ended()
    assert (killed["reason"], killed["signal"]) == ("engine_signal", signal.SIGKILL)
    with guard(tmp_path, "raise SystemExit('model file is damaged')") as running:
        crashed = running.ended()
    assert (crashed["reason"], crashed["exit_code"], running.process.returncode) == ("engine_exit", 1, 1)
    assert crashed["log_tail"] == ["model file is damaged"]


def test_a_silent_boot_is_a_hang(tmp_path: Path) -> None:
    with guard(tmp_path, SLEEP, silence_limit_s=1.0) as running:
        ended = running.ended()
    assert ended["reason"] == "hang"
    assert "in phase starting" in ended["detail"]


def test_an_engine_that_cannot_be_started(tmp_path: Path) -> None:
    with guard(tmp_path, "", argv=["/no/such/program"]) as running:
        ended = running.ended()
    assert (ended["reason"], ended["exit_code"]) == ("spawn_failed", None)
    assert "/no/such/program" in ended["detail"]


PROVES = (
    "import json, os, pathlib, time\n"
    "spec = json.loads(pathlib.Path(os.environ['SPARKYARD_RANK_SPEC']).read_text())\n"
    "proof = {'schema': 'sparkyard/plugin-proof/v1', 'pid': os.getpid(), 'engram': {'mode': 'disk'}}\n"
    "proof |= {key: spec[key] for key in ('rank', 'tp')}\n"
    "(pathlib.Path(spec['directory']) / 'proof.json').write_text(json.dumps(proof))\n"
)
DISK = {"engram": {"mode": "disk"}}


def test_ready_without_the_plugins_proof_ends_the_rank(tmp_path: Path) -> None:
    with guard(tmp_path, READY, plugin=DISK) as running:
        ended = running.ended()
    assert ended["reason"] == "plugin_missing"
    assert "proof.json was not written" in ended["detail"]


def test_a_stale_proof_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "proof.json").write_text('{"schema": "sparkyard/plugin-proof/v1", "rank": 0}')
    with guard(tmp_path, READY, plugin=DISK) as running:
        assert running.ended()["reason"] == "plugin_missing"


def test_boot_timeline_proof_counters_and_environment(tmp_path: Path) -> None:
    program = PROVES + (
        "print('Load weight begin. avail mem=100.00 GB'); time.sleep(0.1)\n"
        "print('Load weight end. elapsed=9.1 s, type=X, avail mem=20.0 GB, mem usage=72.50 GB.')\n"
        "print('DSV4 memory calculation: unified=True, full_token=749824')\n"
        "print(sorted(os.environ))\n"
        "(pathlib.Path(spec['directory']) / 'engram.json').write_text('{\"rows\": 5}')\n" + READY
    )
    argv = [sys.executable, "-c", program, "--max-total-tokens", "750000"]
    with guard(tmp_path, program, plugin=DISK, argv=argv, env={"ASKED": "1"}) as running:
        status = running.until(lambda seen: seen["phase"] == "ready" and seen["engram"])
        assert status["spec"] == rankspec.identity_of(running.value)
        assert list(status["phases"]) == sorted(["starting", "loading", "kv", "ready"])
        assert (status["kv_tokens"], status["kv_tokens_asked"]) == (749824, 750000)
        assert status["weights_bytes"] == round(72.5 * (1 << 30))
        assert status["proof"]["pid"] == status["engine_pid"]
        log = (running.directory / "engine.log").read_text()
        assert "'ASKED'" in log
        assert "NOT_FOR_THE_ENGINE" not in log


@pytest.mark.parametrize("rank", [0, 1])
def test_ready_by_port(tmp_path: Path, rank: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = (
        "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/ready' else 404); self.end_headers()\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), H).serve_forever()"
    )
    with guard(tmp_path, server, rank=rank, api_port=port) as running:
        running.until(lambda seen: seen["phase"] == "ready")


def test_secrets_do_not_reach_logs_or_status(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("wholly-private\n")
    program = (
        "print('key wholly-private, server_args=ServerArgs(api_key=\\'sk-1\\', tp=3) Bearer abcdefghijkl')"
    )
    with guard(tmp_path, program, plugin={"settings": {"api_key_file": str(secret)}}) as running:
        ended = running.ended()
    assert ended["log_tail"] == ["key ***, server_args=ServerArgs(api_key='***', tp=3) Bearer ***"]
    assert (running.directory / "engine.log").read_text().strip() == ended["log_tail"][0]


def test_a_dead_guard_leaves_no_engine(tmp_path: Path) -> None:
    with guard(tmp_path, STUBBORN) as running:
        running.engine_says("up")
        engine_pid = running.engine_pid()
        running.process.kill()
        running.process.wait(DEADLINE_S)
        deadline_s = time.monotonic() + DEADLINE_S
        while psutil.pid_exists(engine_pid) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not psutil.pid_exists(engine_pid) or psutil.Process(engine_pid).status() == "zombie"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("schema", "sparkyard/rank-spec/v2"),
        ("argv", []),
        ("argv", ["python"]),
        ("rank", 3),
        ("tp", True),
        ("env", {"A": 1}),
        ("env", {"A=B": ""}),
        ("directory", "relative"),
        ("grace_s", 0),
        ("api_port", 70000),
        ("plugin", None),
        ("memory_floor_bytes", -1),
    ],
)
def test_a_bad_spec_is_refused_by_key(tmp_path: Path, key: str, wrong: object) -> None:
    with pytest.raises(rankspec.RankSpecError, match=rf"^{key}"):
        rankspec.parse(spec_value(tmp_path, SLEEP, **{key: wrong}))


@pytest.mark.parametrize(
    ("bounds", "available", "floor"),
    [
        ({"memory_floor_bytes": 0}, 20 << 30, 0),
        ({"memory_floor_bytes": 3 << 30}, 1 << 30, 3 << 30),
        ({"memory_floor_bytes": None, "memory_floor_below_start_bytes": 12 << 30}, 20 << 30, 8 << 30),
        ({"memory_floor_bytes": None, "memory_floor_below_start_bytes": 12 << 30}, 9 << 30, 256 << 20),
    ],
)
def test_the_floor_is_the_named_one_or_follows_what_was_there(
    tmp_path: Path, bounds: dict[str, int | None], available: int, floor: int
) -> None:
    spec = rankspec.parse(spec_value(tmp_path, SLEEP, **bounds))
    assert rankspec.floor_bytes(spec, available) == floor


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_bad_spec_ends_with_status_2_and_no_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "sparkyard_engine.guard", str(path)],
        env={**os.environ, "PYTHONPATH": str(ENGINE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"guard: {path}:")
    assert "Traceback" not in done.stderr


def test_signs_in_recorded_lines() -> None:
    cases = {
        "[2026-11-29 12:00:00 TP1] Gated launch waiting for activation. rank=1": Sign(phase=Phase.JOINED),
        "[2026-11-29 12:00:00] Capture decode CUDA graph begin. backend=full": Sign(phase=Phase.GRAPHS),
        "max_total_num_tokens=8192, chunked_prefill_size=64, context_len=512": Sign(kv_tokens=8192),
        "Decode batch, #running-req: 1": None,
    }
    assert {line: signs.read(line) for line in cases} == cases


@given(st.text(max_size=200), st.text(min_size=signs.LEAST_SECRET, alphabet="abcdef0123456789", max_size=20))
@settings(max_examples=60, derandomize=True)
def test_a_secret_never_survives_redaction(line: str, secret: str) -> None:
    assert secret not in signs.redact(line + secret + line, [secret])


def test_proof_of_another_rank_or_mode_is_refused(tmp_path: Path) -> None:
    spec = rankspec.parse(spec_value(tmp_path, SLEEP, plugin=DISK))
    proof = {"schema": "sparkyard/plugin-proof/v1", "rank": 0, "tp": 3, "pid": 9, "engram": {"mode": "disk"}}
    assert missing(spec, proof, [9]) is None
    assert "rank" in (missing(spec, proof | {"rank": 1}, [9]) or "")
    assert "no process" in (missing(spec, proof, [8]) or "")
    assert "engram.mode" in (missing(spec, proof | {"engram": {"mode": "memory"}}, [9]) or "")


def test_a_stranger_on_the_ranks_port_does_not_make_it_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with guard(tmp_path, SLEEP, rank=1, api_port=port) as running:
            running.engine_says("up")
            stranger.settimeout(DEADLINE_S)
            for _ in range(2):  # the guard has looked, and looked again
                stranger.accept()[0].close()
            assert running.status()["phase"] == "starting"

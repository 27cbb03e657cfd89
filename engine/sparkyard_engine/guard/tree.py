"""The engine's process tree: start it, kill all of it, reap what is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
MCL_CURRENT, MCL_FUTURE = 1, 2  # sys/mman.h
ENGINE_OOM_SCORE = 500  # if the kernel must choose, it takes the engine and not the guard
KILL_PASSES = 50  # a tree that forks while it is killed is gone after a few passes
KILL_PAUSE_S = 0.01
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the reaper of every descendant, so that none can leave the tree. Raises OSError."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def stay_in_memory() -> bool:
    """Keep our own pages resident: the guard acts when no page can be had. False where not allowed."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return False  # with a limit, MCL_FUTURE would make later allocations fail
    return bool(_libc.mlockall(MCL_CURRENT | MCL_FUTURE) == 0)


def start(argv: tuple[str, ...], env: Mapping[str, str], output_fd: int) -> int:
    """Start the engine in a session of its own, its output on `output_fd`; its process id. Raises OSError.

    Must run before any thread exists: the child runs Python between fork and exec.
    """
    parent = os.getpid()

    def in_the_child() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a killed guard leaves no engine behind
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(ENGINE_OOM_SCORE))

    engine = subprocess.Popen(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        start_new_session=True,
        preexec_fn=in_the_child,  # noqa: PLW1509 - single-threaded at this point, see above
    )
    engine.returncode = 0  # reaped by `reap`, not by this object
    return engine.pid


def kill(engine_pid: int) -> None:
    """SIGKILL the engine's group at once, then every descendant that is still alive.

    Only the main thread reaps, so a descendant that is listed here cannot have been replaced by a stranger.
    """
    with contextlib.suppress(OSError):
        os.killpg(engine_pid, signal.SIGKILL)
    for _ in range(KILL_PASSES):
        alive = living()
        if not alive:
            return
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(KILL_PAUSE_S)


def living() -> list[psutil.Process]:
    """Every descendant that still runs (the dead that wait to be reaped are left out)."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def reap() -> dict[int, int]:
    """Collect every dead child: process id → exit code, negative for a signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)

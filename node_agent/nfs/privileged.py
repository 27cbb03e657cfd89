"""Commands that need root: as root, or through `sudo` without a password."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from node_agent.files import write_bytes
from node_agent.wire import Refused


def run(*argv: str, timeout_s: float) -> str:
    """Run one command as root; its output. Refused with its last words."""
    command = list(argv) if os.geteuid() == 0 else ["sudo", "-n", *argv]
    environment = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LANG": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"{argv[0]} gave no answer within {timeout_s:.0f} s", kind="timeout") from None
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-2000:]
        if command[0] == "sudo" and "password" in words:
            words += f"; allow it without one (sudoers: NOPASSWD for {argv[0]}), or use an account that may"
        raise Refused(f"{' '.join(argv)}: {words or f'exit code {done.returncode}'}")
    return done.stdout


def replace_file(path: Path, text: str | None, *, timeout_s: float) -> None:
    """Put ``text`` into a file of the system, whole or not at all; None removes it."""
    if text is None:
        run("rm", "-f", str(path), timeout_s=timeout_s)
        return
    if os.geteuid() == 0:
        write_bytes(path, text.encode(), mode=0o644)
        return
    command = [
        "sudo",
        "-n",
        "sh",
        "-c",
        'umask 022; cat >"$1.new" && sync "$1.new" && mv "$1.new" "$1"',
        "sh",
        str(path),
    ]
    run("mkdir", "-p", str(path.parent), timeout_s=timeout_s)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise Refused(f"{path}: {done.stderr.strip()}")

"""The one way to root: as root itself, or `sudo -n` with a command line that `node_agent.rights` lists.

Nothing else of the agent starts `sudo`. Binaries are named by their absolute path, since that is what sudo compares;
a refusal names the whole command line, so that a person can allow it or run it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from node_agent.files import write_bytes
from node_agent.wire import Refused

SUDO = "/usr/bin/sudo"
PATHS = {
    "ethtool": "/usr/sbin/ethtool",
    "exportfs": "/usr/sbin/exportfs",
    "gpasswd": "/usr/bin/gpasswd",
    "install": "/usr/bin/install",
    "ip": "/usr/bin/ip",
    "iptables": "/usr/sbin/iptables",
    "mount": "/usr/bin/mount",
    "nvidia-ctk": "/usr/bin/nvidia-ctk",
    "nvme": "/usr/sbin/nvme",
    "rm": "/usr/bin/rm",
    "sysctl": "/usr/sbin/sysctl",
    "timedatectl": "/usr/bin/timedatectl",
    "umount": "/usr/bin/umount",
    "usermod": "/usr/sbin/usermod",
}
"""Where Debian and Ubuntu put them."""
FOLDER = Path("/etc/sparkyard")
ENROLLED = FOLDER / "enrolled"
"""Written by `enroll` together with the rights: the owner of the machine agreed to them."""
EXPORTS = FOLDER / "exports"
"""What `share` may export: written once by `enroll`, owned by root."""
MOUNT_POINT = Path("/var/lib/sparkyard/nfs")
"""Owned by root: over a folder of an ordinary user, `mount` could be led anywhere by a symbolic link."""
LIST_TIMEOUT_S = 10.0
_DENIED = re.compile(
    r"password is required|is not allowed to|not in the sudoers|terminal is required|authentication is required"
    r"|afraid I can't do that",
    re.IGNORECASE,
)
"""sudo's words, and those of its rewrite that newer releases of Ubuntu have."""
_NO_PRIVILEGES = re.compile(r"no new privileges|must be owned by uid 0|effective uid is not 0", re.IGNORECASE)


class NotAllowedError(Refused):
    """sudo does not allow this very command line."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        line = " ".join(absolute(argv))
        super().__init__(
            f"not among this account's sudo rights: {line}; allow it (./start.sh enroll), or run it yourself as root",
            kind="refused",
        )
        self.line = line


def is_root() -> bool:
    """Whether the agent itself is root."""
    return os.geteuid() == 0


def agreed() -> bool:
    """Whether the rights of this account were installed by `enroll`."""
    return ENROLLED.exists()


def absolute(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command line as sudoers names it. KeyError for a program that is not in the list."""
    return (PATHS[argv[0]], *argv[1:])


def command(argv: tuple[str, ...]) -> list[str]:
    """What to start: the command line itself for root, otherwise `sudo -n` and its absolute form."""
    return list(argv) if is_root() else [SUDO, "-n", "--", *absolute(argv)]


def installed(argv: tuple[str, ...]) -> bool:
    """Whether the program is there at all; sudo's own words for that look like a refusal."""
    return is_root() or Path(PATHS[argv[0]]).exists()


def was_denied(status: int, words: str) -> bool:
    """Whether sudo refused, rather than the command failed."""
    return not is_root() and status != 0 and bool(_DENIED.search(words) or _NO_PRIVILEGES.search(words))


def allowed(argv: tuple[str, ...]) -> bool:
    """Whether this very command line would be run; it is not."""
    if is_root():
        return True
    try:
        done = _run([SUDO, "-n", "-l", "--", *absolute(argv)], LIST_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def run(*argv: str, timeout_s: float) -> str:
    """Run one command as root; its output. Refused with its last words, NotAllowedError without the right."""
    try:
        done = _run(command(argv), timeout_s)
    except subprocess.TimeoutExpired:
        raise Refused(f"{argv[0]} gave no answer within {timeout_s:.0f} s", kind="timeout") from None
    except OSError as error:
        raise Refused(f"{command(argv)[0]}: {error.strerror}") from None
    words = (done.stderr or done.stdout).strip()[-2000:]
    if was_denied(done.returncode, words):
        raise NotAllowedError(argv)
    if done.returncode != 0:
        raise Refused(f"{' '.join(argv)}: {words or f'exit code {done.returncode}'}")
    return done.stdout


def _run(argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LANG": "C", "LC_ALL": "C"}
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def replace_file(path: Path, text: str | None) -> None:
    """As root: put ``text`` into a file of the system, whole or not at all; None removes it."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, text.encode(), mode=0o644)

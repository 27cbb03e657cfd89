"""Puts the list of rights on a node: files of root's, checked by visudo, each under its name only when it is whole.

This runs once, with the password of a person who may use sudo there; afterwards the account has the listed rights only.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import paramiko

from orchestrator.model.cluster import Node
from orchestrator.remote.enroll import COMMAND_TIMEOUT_S, EnrollError, connection

MARK = "SPARKYARD-RIGHTS"
DONE = "SPARKYARD-DONE"
OUTPUT_MAX_BYTES = 1 << 20
# Runs as root. Everything before the mark is not ours: a password that sudo did not ask for. All places are fixed here.
PROGRAM = r"""
import json, os, subprocess, sys
order = json.loads(sys.stdin.read().partition("SPARKYARD-RIGHTS\n")[2])
def fail(text):
    sys.exit("sparkyard: " + text)
def folder(path):
    os.makedirs(path, 0o755, exist_ok=True)
    seen = os.lstat(path)
    if seen.st_uid != 0 or (seen.st_mode & 0o170000) != 0o040000 or seen.st_mode & 0o022:
        fail(path + " is not a folder that only root may write")
def draft(path, text, mode):
    name = os.path.join(os.path.dirname(path), ".sparkyard." + os.path.basename(path) + ".new")
    if os.path.lexists(name):
        os.unlink(name)
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(handle, mode)
        file.write(text)
        file.flush()
        os.fsync(handle)
    return name
def put(name, path):
    os.replace(name, path)
    handle = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
rights = "/etc/sudoers.d/sparkyard"
checked = draft(rights, order["sudoers"], 0o440)
visudo = subprocess.run(["/usr/sbin/visudo", "-c", "-q", "-f", checked], capture_output=True, text=True)
if visudo.returncode != 0:
    os.unlink(checked)
    fail("visudo refuses the list: " + (visudo.stderr or visudo.stdout).strip()[:500])
folder("/etc/sparkyard")
if order["exports"]:
    folder("/etc/exports.d")
    put(draft("/etc/sparkyard/exports", order["exports"], 0o644), "/etc/sparkyard/exports")
if order["fstab"]:
    folder("/var/lib/sparkyard")
    if not os.path.ismount("/var/lib/sparkyard/nfs"):
        folder("/var/lib/sparkyard/nfs")
    try:
        with open("/etc/fstab", encoding="utf-8", errors="surrogateescape", newline="") as file:
            old = file.read()
        mode = os.stat("/etc/fstab").st_mode & 0o777
    except FileNotFoundError:
        old, mode = "", 0o644
    kept = "\n".join(line for line in old.split("\n") if not line.rstrip().endswith("# sparkyard"))
    new = kept + ("" if not kept or kept.endswith("\n") else "\n") + order["fstab"]
    if new != old:
        name = draft("/etc/fstab", "", mode)
        with open(name, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        put(name, "/etc/fstab")
put(checked, rights)
put(draft("/etc/sparkyard/enrolled", order["enrolled"], 0o644), "/etc/sparkyard/enrolled")
print("SPARKYARD-DONE")
"""


class Order(NamedTuple):
    """Contents of the files; `exports` and `fstab` are empty where this node has no part in the share."""

    sudoers: str
    exports: str
    fstab: str
    enrolled: str


class _Ran(NamedTuple):
    status: int
    out: str
    err: str


def install(node: Node, order: Order, ask_password: Callable[[str], str]) -> None:
    """Install the files on a node. EnrollError says why not; the list of rights is then the one from before.

    `ask_password` is called with a prompt when sudo wants one there.
    """
    who = f"{node.user}@{node.address}" if node.transport == "ssh" and node.user else node.name
    free = _run(node, ["sudo", "-n", "true"], "").status == 0
    password = "" if free else ask_password(f"sudo password of {who}: ")
    # -k: the password is good for this one command and is not remembered for the next
    given = f"{password}\n{MARK}\n{json.dumps(order._asdict())}"
    ran = _run(node, ["sudo", "-k", "-S", "-p", "", "python3", "-I", "-c", PROGRAM], given)
    if ran.status == 0 and DONE in ran.out:
        return
    words = " ".join(ran.err.replace(password, "(password)").split() if password else ran.err.split())[-500:]
    if "incorrect" in words or "no password was provided" in words:
        raise EnrollError(f"{node.name}: sudo refused the password; nothing was installed")
    if "not in the sudoers" in words or "may not run sudo" in words or "not allowed to execute" in words:
        raise EnrollError(
            f"{node.name}: {who} may not use sudo: let an administrator install the files as shown"
        )
    raise EnrollError(f"{node.name}: the rights could not be installed: {words or f'exit code {ran.status}'}")


def _run(node: Node, argv: list[str], given: str) -> _Ran:
    if node.transport == "local":
        try:
            done = subprocess.run(
                argv, input=given, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnrollError(f"{node.name}: {argv[0]}: {error}") from error
        return _Ran(done.returncode, done.stdout, done.stderr)
    if node.host_key is None:
        raise EnrollError(f"{node.name}: no pinned host key yet")
    try:
        with connection(node, node.host_key, key_filename=node.key) as opened:
            opened.open()
            # not `run`: it sends its input letter by letter, and fails when the command ends without reading it
            stdin, stdout, stderr = opened.client.exec_command(shlex.join(argv), timeout=COMMAND_TIMEOUT_S)
            with contextlib.suppress(OSError):
                stdin.write(given)
                stdin.channel.shutdown_write()
            out, err = (
                stream.read(OUTPUT_MAX_BYTES).decode("utf-8", "replace") for stream in (stdout, stderr)
            )
            return _Ran(stdout.channel.recv_exit_status(), out, err)
    except (OSError, paramiko.SSHException) as error:
        raise EnrollError(f"{node.name}: {error}") from error

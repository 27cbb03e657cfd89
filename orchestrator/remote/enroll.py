"""`enroll`: first contact with a node, by password once; afterwards a key of our own and a pinned host key."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import paramiko
from fabric import Connection
from invoke.exceptions import UnexpectedExit

from orchestrator.errors import SparkyardError
from orchestrator.model.cluster import Node

CONNECT_TIMEOUT_S = 15
COMMAND_TIMEOUT_S = 60
KEYGEN_TIMEOUT_S = 30.0
KEY_NAME = "sparkyard_ed25519"
PYTHON_FLOOR = (3, 10)
# The line arrives on standard input: nothing of it is quoted into the command.
INSTALL = (
    "umask 077; mkdir -p .ssh && touch .ssh/authorized_keys && read -r line && "
    '(grep -qxF "$line" .ssh/authorized_keys || printf "%s\\n" "$line" >> .ssh/authorized_keys)'
)


class EnrollError(SparkyardError):
    """A node could not be enrolled; the text says at which step and what to do."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What goes into the cluster file."""

    node: str
    key: str
    host_key: str
    fingerprint: str
    python: str
    key_was_new: bool


def own_key(folder: Path) -> tuple[Path, str, bool]:
    """sparkyard's own key pair below a folder: private file, public line, whether it was just made.

    EnrollError when ssh-keygen is missing or fails.
    """
    private = folder / KEY_NAME
    made = not private.exists()
    if made:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sparkyard", "-f", str(private)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=KEYGEN_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise EnrollError(f"{private}: no key could be made: {error}") from error
    return private, private.with_suffix(".pub").read_text("ascii").strip(), made


def host_key(node: Node) -> tuple[str, str]:
    """The host key that a node offers now (`type base64`) and its fingerprint. EnrollError without an answer."""
    try:
        transport = paramiko.Transport((node.address, node.port))
    except (OSError, paramiko.SSHException) as error:
        raise EnrollError(f"{node.name}: {node.address}:{node.port} does not answer: {error}") from error
    try:
        transport.start_client(timeout=CONNECT_TIMEOUT_S)
        offered = transport.get_remote_server_key()
    except paramiko.SSHException as error:
        raise EnrollError(f"{node.name}: {node.address}:{node.port} is no SSH server: {error}") from error
    finally:
        transport.close()
    digest = base64.b64encode(hashlib.sha256(offered.asbytes()).digest()).decode().rstrip("=")
    return f"{offered.get_name()} {offered.get_base64()}", f"SHA256:{digest}"


def connection(node: Node, pinned: str, **how: object) -> Connection:
    """A connection that accepts the pinned host key and no other."""
    name = node.address if node.port == 22 else f"[{node.address}]:{node.port}"
    kind, data = pinned.split()
    opened = Connection(
        node.address,
        user=node.user or None,
        port=node.port,
        connect_timeout=CONNECT_TIMEOUT_S,
        connect_kwargs={"allow_agent": False, "look_for_keys": False, **how},
    )
    opened.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    key = paramiko.PKey.from_type_string(kind, base64.b64decode(data))
    opened.client.get_host_keys().add(name, kind, key)
    return opened


def enroll(
    node: Node,
    *,
    keys: Path,
    ask_password: Callable[[str], str],
    trust: Callable[[str, str], bool],
) -> Enrolled:
    """Install our key on a node and prove that it works.

    Args:
        node: as in the cluster file; a host key that is pinned there already must be offered again.
        keys: folder of our own key pair.
        ask_password: called with a prompt when the key is not on the node yet.
        trust: called with node name and fingerprint of a host key that was never seen.

    EnrollError says at which step it ended; nothing else on the node was changed then.
    """
    offered, fingerprint = host_key(node)
    if node.host_key is not None and node.host_key.split()[:2] != offered.split():
        raise EnrollError(
            f"{node.name}: the host key is {fingerprint}, another one is pinned in the cluster file: either the node "
            "was installed anew (then remove nodes.*.host_key) or somebody stands between"
        )
    if node.host_key is None and not trust(node.name, fingerprint):
        raise EnrollError(f"{node.name}: host key {fingerprint} was not accepted")
    private, public, _ = own_key(keys)
    is_new = not _works(node, offered, private)
    if is_new:
        who = f"{node.user}@{node.address}" if node.user else node.address
        _install(node, offered, public, ask_password(f"password of {who}: "))
        if not _works(node, offered, private):
            raise EnrollError(
                f"{node.name}: the installed key is refused: see AuthorizedKeysFile in sshd_config"
            )
    return Enrolled(node.name, str(private), offered, fingerprint, _python(node, offered, private), is_new)


def _works(node: Node, offered: str, private: Path) -> bool:
    try:
        with connection(node, offered, key_filename=str(private)) as opened:
            opened.open()
            return bool(opened.is_connected)
    except paramiko.AuthenticationException:
        return False
    except (OSError, paramiko.SSHException) as error:
        raise EnrollError(f"{node.name}: {error}") from error


def _install(node: Node, offered: str, public: str, password: str) -> None:
    try:
        with connection(node, offered, password=password) as opened:
            opened.run(INSTALL, in_stream=StringIO(public + "\n"), hide=True, timeout=COMMAND_TIMEOUT_S)
    except paramiko.AuthenticationException as error:
        raise EnrollError(f"{node.name}: the password was refused") from error
    except (OSError, paramiko.SSHException, UnexpectedExit) as error:
        raise EnrollError(f"{node.name}: the key could not be installed: {error}") from error


def _python(node: Node, offered: str, private: Path) -> str:
    command = 'python3 -c "import sys; print(*sys.version_info[:3], sep=chr(46))"'
    with connection(node, offered, key_filename=str(private)) as opened:
        ran = opened.run(command, hide=True, warn=True, in_stream=False, timeout=COMMAND_TIMEOUT_S)
    text = str(ran.stdout).strip()
    numbers = tuple(int(part) for part in text.split(".") if part.isdecimal())
    if ran.exited != 0 or numbers < PYTHON_FLOOR:
        raise EnrollError(f"{node.name}: needs Python 3.10 or newer, has {text or 'none'}")
    return text

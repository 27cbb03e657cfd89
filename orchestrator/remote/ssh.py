"""One SSH connection a node, held open, with one long-lived command on it. The only file that knows asyncssh."""

from __future__ import annotations

import asyncio
import getpass
from contextlib import suppress

import asyncssh

from orchestrator.errors import AskError
from orchestrator.model.cluster import Node
from orchestrator.remote.boot import COMMAND

CONNECT_TIMEOUT_S = 15.0
KEEPALIVE_S = 5.0
KEEPALIVE_MAX = 3
"""A peer that is silent for three keepalives is gone: 15 s, well under every wait's deadline."""
LAST_WORDS_BYTES = 2000
LAST_WORDS_TIMEOUT_S = 1.0
COMMAND_NOT_FOUND = 127


class SshPipe:
    """A remote command as a `Pipe`."""

    def __init__(
        self, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]
    ) -> None:
        self._connection = connection
        self._process = process

    async def read(self, limit: int) -> bytes:
        """See `Pipe`."""
        try:
            return await self._process.stdout.read(limit)
        except (asyncssh.Error, OSError) as error:
            raise AskError("unreachable", f"the SSH connection broke: {error}") from None

    async def write(self, data: bytes) -> None:
        """See `Pipe`."""
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError) as error:
            raise AskError("unreachable", f"the SSH connection broke: {error}") from None

    async def close(self) -> None:
        """See `Pipe`."""
        self._process.close()
        self._connection.close()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connection.wait_closed()
        except (TimeoutError, asyncssh.Error, OSError):
            self._connection.abort()

    async def last_words(self) -> str:
        """See `Pipe`."""
        words = ""
        with suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(LAST_WORDS_TIMEOUT_S):
                words = (await self._process.stderr.read(LAST_WORDS_BYTES)).decode("utf-8", "replace").strip()
                await self._process.wait_closed()  # the exit status may come after the last words
        if self._process.exit_status == COMMAND_NOT_FOUND:
            return f"no python3 on the node: install Python 3.10 or newer ({words})"
        return words


async def dial(node: Node) -> SshPipe:
    """Connect to ``node`` with its pinned host key and start the agent's boot program.

    Raises:
        AskError: unreachable, host key differs or is not pinned, key refused. The text says which, and the remedy.
    """
    if node.host_key is None:
        raise AskError("refused", "no pinned host key in the cluster file; run enroll for this node")
    where = f"{node.address}:{node.port}"
    try:
        pinned = asyncssh.import_public_key(node.host_key)
    except (asyncssh.KeyImportError, ValueError) as error:
        raise AskError("refused", f"host_key in the cluster file is not a public key: {error}") from None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await asyncssh.connect(
                node.address,
                node.port,
                username=node.user or getpass.getuser(),
                client_keys=[node.key] if node.key else (),
                known_hosts=([pinned], [], []),
                agent_forwarding=False,
                config=None,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVE_MAX,
            )
    except TimeoutError:
        raise AskError(
            "unreachable", f"no SSH answer from {where} within {CONNECT_TIMEOUT_S:.0f} s"
        ) from None
    except asyncssh.HostKeyNotVerifiable:
        raise AskError(
            "refused",
            f"the host key of {where} is not the pinned one: another machine answers there, or it was installed "
            "anew; if you know why, run enroll for this node again",
        ) from None
    except asyncssh.PermissionDenied:
        raise AskError(
            "refused",
            f"{where} refuses the key {node.key or '(default keys)'} for user {node.user}; run enroll",
        ) from None
    except (asyncssh.Error, OSError) as error:
        raise AskError("unreachable", f"SSH to {where}: {error}") from None
    except ValueError as error:  # a damaged key file, or one whose .pub beside it is another's
        raise AskError("refused", f"{node.key or 'default keys'}: no usable key: {error}") from None
    try:
        process = await connection.create_process(COMMAND, encoding=None)
    except (asyncssh.Error, OSError) as error:
        connection.close()
        raise AskError("unreachable", f"SSH to {where}: {error}") from None
    return SshPipe(connection, process)

"""One node of the lab: a real SSH server on loopback, in a process of its own, with a root folder of its own.

    python -m orchestrator.lab.sshd FOLDER

The folder holds `node.json` ({name, port}), `host_key`, `authorized_keys`. Commands run as this user, as sshd would
run them; when a connection ends, its commands get the end of their input, as with OpenSSH.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import asyncssh

KILL_AFTER_S = 10.0
"""A command that does not end with its input gets SIGKILL: short work must not outlive its channel."""


class Server(asyncssh.SSHServer):
    """Public keys only."""

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        """Every user must authenticate."""
        return True


async def run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """The remote command, through the user's shell, with its three streams."""
    if process.command is None:
        process.stderr.write(b"this server runs commands only\n")
        process.exit(1)
        return
    child = await asyncio.create_subprocess_shell(
        process.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    ended = asyncio.create_task(child.wait())
    closed = asyncio.create_task(process.wait_closed())
    await asyncio.wait({ended, closed}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(KILL_AFTER_S):
                await ended
        except TimeoutError:
            child.kill()
            await child.wait()
        return
    closed.cancel()
    process.exit(child.returncode if child.returncode is not None and child.returncode >= 0 else 255)


async def serve(folder: Path) -> None:
    """Listen until the process is ended."""
    node = json.loads((folder / "node.json").read_text(encoding="utf-8"))
    async with await asyncssh.create_server(
        Server,
        "127.0.0.1",
        int(node["port"]),
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=run_command,
        encoding=None,
        agent_forwarding=False,
        password_auth=False,
        kbdint_auth=False,
    ) as server:
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

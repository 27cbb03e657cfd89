"""`monitor --install`: the monitor as a service of systemd, on a node of its own cluster."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.each import look
from orchestrator.errors import ConfigError, Exit, SparkyardError
from orchestrator.model.event import Said
from orchestrator.verbs import Answer, Session
from orchestrator.watch import key
from orchestrator.watch.unit import Unit

CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_UNITS = Path("/etc/systemd/system")
MACHINE_ID = Path("/etc/machine-id")
COMMAND_TIMEOUT_S = 60.0


class InstallError(SparkyardError):
    """The unit cannot be installed here; the text says why and what helps."""


def unit(session: Session, cluster_file: Path, profile: str, options: tuple[str, ...]) -> Unit:
    """The unit for this user on this machine."""
    state = (cluster_file.parent / ".sparkyard").resolve()
    if key.needed(session.cluster):
        options += ("--key", str(state / key.NAME))
    return Unit(
        python=Path(sys.executable),
        checkout=CHECKOUT,
        cluster_file=cluster_file.resolve(),
        state=state,
        profile=profile,
        deployment=session.profile.name,
        user=getpass.getuser(),
        system=os.geteuid() == 0,
        around_ranks=any(node.transport == "local" for node in session.cluster.nodes),
        options=options,
    )


async def install(session: Session, wanted: Unit, machine_id: Path = MACHINE_ID) -> Answer:
    """Write the unit, enable and start it, with a key of its own on every other node.

    `machine_id`: the file that tells this machine from others.

    Raises:
        ConfigError: this machine is no node of the cluster.
        KeyRefusedError, InstallError: a node does not take the key, or this machine does not take the unit.
    """
    await _on_a_node(session, machine_id)
    if not wanted.system:
        _lingers(wanted.user)
    if key.needed(session.cluster):
        async with session.world() as world:
            own = await key.put_in_place(world, session.profile.name, wanted.state)
        session.emit(Said("note", f"{own}: the monitor's own key, restricted on every node"))
    folder = SYSTEM_UNITS if wanted.system else Path.home() / ".config" / "systemd" / "user"
    scope = [] if wanted.system else ["--user"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wanted.name
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(wanted.text())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for words in (["daemon-reload"], ["enable", wanted.name], ["restart", wanted.name]):
        _run(["systemctl", *scope, *words])
    session.emit(
        Said("note", f"{path}: enabled and started; journalctl {' '.join(scope)} -u {wanted.name} -f")
    )
    return Answer({"schema": "sparkyard/monitor-unit/v1", "unit": str(path)}, Exit.FINE)


async def _on_a_node(session: Session, machine_id: Path) -> None:
    """A monitor elsewhere would go down with a laptop: the endpoint has to survive the reboot of any one machine."""
    if any(node.transport == "local" for node in session.cluster.nodes):
        return
    async with session.world() as world:
        facts, _ = await look(world.nodes, world.look_args())
    here = machine_id.read_text(encoding="ascii").strip()  # noqa: ASYNC240 - one short local file
    if here not in {known.machine_id for known in facts.values()}:
        names = ", ".join(node.name for node in session.cluster.nodes)
        raise ConfigError(
            [
                f"monitor --install: this machine is no node of the cluster ({names}): run it on one, say the head"
            ]
        )


def _lingers(user: str) -> None:
    """A user's manager ends with the last session unless it lingers."""
    said = _run(["loginctl", "show-user", user, "--property", "Linger"])
    if said.strip() != "Linger=yes":
        raise InstallError(
            f"user {user} does not linger: the monitor would end when you log out ({said.strip() or 'unknown'}); "
            f"sudo loginctl enable-linger {user}, then again"
        )


def _run(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, errors="replace"
        )
    except FileNotFoundError:
        raise InstallError(f"{argv[0]} is not here: monitor --install needs systemd") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(argv)}: no answer within {COMMAND_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise InstallError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout

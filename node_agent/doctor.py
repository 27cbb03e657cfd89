"""What the doctor asks of a node beyond facts: pings, load probes, repairs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from node_agent import remedies
from node_agent.actions import containers
from node_agent.facts import Live, peers
from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.probes import collective, gpu, nvme, perftest
from node_agent.wire import Refused, Report

PROBES = "probes.json"
_saving = threading.Lock()


def ping(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Ping `args["targets"]`, a list of [device, address]."""
    del home
    targets = [(str(device), str(address)) for device, address in args["targets"]]
    return {"peers": peers.read(Live(), targets)}


def probe(home: Home, args: dict[str, Any], report: Report, *, serving: bool) -> dict[str, Any]:
    """Run one load probe and keep its result. Refused while a rank runs here: both would be wrong.

    `args["probe"]` is burn, gemv, nvme, allreduce, listen (RDMA, the receiving side) or rdma (the sending side).
    """
    if serving:
        raise Refused("a rank is running on this node: stop it first (./start.sh stop)", kind="refused")
    kind = str(args["probe"])
    source = Live()
    try:
        if kind == "burn":
            found: dict[str, Any] = gpu.burn(source, report)
        elif kind == "gemv":
            found = gpu.gemv(source, report)
        elif kind == "nvme":
            home.root.mkdir(parents=True, exist_ok=True)
            found = nvme.measure(home.root, report)
        elif kind in ("listen", "rdma"):
            address = str(args["address"]) if kind == "rdma" else None
            found = perftest.run(
                source, str(args["device"]), int(args["gid_index"]), int(args["port"]), address
            )
        elif kind == "allreduce":
            found = _allreduce(home, args)
        else:
            raise Refused(f"no such probe: {kind[:80]!r}")
    except gpu.ProbeError as error:
        _keep(home, {}, {"rdma" if kind == "listen" else kind: str(error)[:400]})
        raise Refused(str(error)) from None
    if kind in ("burn", "gemv", "nvme", "allreduce"):
        _keep(home, {kind: found}, {kind: None})
    return found


def _allreduce(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """One rank of the collective: in the engine's image when `image` is given, else with the Python at `python`."""
    env = {str(name): str(value) for name, value in dict(args["env"]).items()}
    if args.get("image"):
        name = f"sparkyard-allreduce-{home.node}"
        labels = {containers.NODE: home.node}
        argv = containers.engine_arguments(home, labels, str(args["image"]), {}, {**env, "HOME": "/tmp"})  # noqa: S108
        command = ["docker", "run", "--rm", "--name", name, *argv, "-c", collective.PROGRAM]
        return collective.run(command, {}, ["docker", "rm", "--force", name])
    python = str(args.get("python") or "")
    if not python:
        raise gpu.ProbeError("allreduce: neither the engine's image nor its Python is on this node")
    return collective.run([python, "-c", collective.PROGRAM], env, None)


def keep(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Keep results that only the controller can put together: `rdma`."""
    results: dict[str, Any] = {name: args[name] for name in ("rdma",) if name in args}
    _keep(home, results, {**dict.fromkeys(results), **dict(args.get("missing") or {})})
    return {}


def _keep(home: Home, results: dict[str, Any], missing: dict[str, str | None]) -> None:
    with _saving:
        place = home.root / PROBES
        kept = read_json(place) or {}
        reasons = {**kept.get("missing", {}), **missing}
        kept |= results
        kept["missing"] = {name: reason for name, reason in reasons.items() if reason}
        home.root.mkdir(parents=True, exist_ok=True)
        write_json(place, kept)


def repair(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Show or do one repair (see `node_agent.remedies`)."""
    return remedies.apply(_marks(home), args)


def confirm(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Keep a repair that would otherwise revert itself."""
    return remedies.confirm(_marks(home), args)


def _marks(home: Home) -> Path:
    return home.root / "repairs"

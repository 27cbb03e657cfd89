"""The agent's loop: requests in, answers out, several at once; every request has an id and a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from node_agent import (
    authorize,
    boots,
    busy,
    doctor,
    evidence,
    holders,
    journal,
    look,
    rights,
    shown,
    sources,
    tree,
    watch,
)
from node_agent.actions import blobs, desired, engine, image, load, paced, pack, probe, ranks, share
from node_agent.home import Home
from node_agent.lease import Lease
from node_agent.watch import pulse
from node_agent.wire import Refused, Report, Writer, read_line

AT_ONCE_MAX = 32
"""Requests in work; more are refused instead of piling up threads."""
PROGRESS_EVERY_S = 0.2

Action = Callable[[Home, dict[str, Any], Report], dict[str, Any]]

ACTIONS: dict[str, Action] = {
    "PutBlob": blobs.put,
    "FetchBlob": blobs.fetch,
    "InstallEngine": engine.install,
    "BuildImage": image.build,
    "OfferImage": image.start_serving,
    "PullImage": image.pull,
    "PruneImages": image.prune,
    "StartFetch": pack.fetch,
    "ExportCheckpoint": share.export,
    "UnexportCheckpoint": share.unexport,
    "AttachCheckpoint": share.attach,
    "DetachCheckpoint": share.detach,
    "ProveCheckpoint": share.prove,
    "StartPack": pack.start,
    "SetDesired": desired.set_desired,
    "StartRank": ranks.start,
    "OpenGate": ranks.open_gate,
    "StopRank": ranks.stop,
    "AskCanary": probe.canary,
    "RunSmoke": probe.smoke,
}
"""What changes a node; each needs the lease."""


class Shell:
    """Serves one channel until it ends."""

    def __init__(self, home: Home, stream_in: BinaryIO, writer: Writer) -> None:
        self._home = home
        self._in = stream_in
        self._writer = writer
        self._lease = Lease(home)
        self._stops: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Read requests until the channel ends; what is short dies with it."""
        while True:
            try:
                message = read_line(self._in)
            except ValueError as error:
                self._writer.send(
                    {"id": None, "ok": False, "error": {"kind": "protocol", "message": str(error)}}
                )
                return
            if message is None:
                return
            request = message.get("id")
            if message.get("ask") == "cancel":
                with self._lock:
                    stop = self._stops.get(message.get("target", -1))
                if stop is not None:
                    stop.set()
                continue
            with self._lock:
                if not isinstance(request, int) or request in self._stops or len(self._stops) >= AT_ONCE_MAX:
                    fault = {
                        "kind": "refused",
                        "message": f"request {request!r}: id in use or over {AT_ONCE_MAX} at once",
                    }
                    self._writer.send({"id": request, "ok": False, "error": fault})
                    continue
                stop = self._stops[request] = threading.Event()
            threading.Thread(target=self._answer, args=(request, message, stop), daemon=True).start()

    def _answer(self, request: int, message: dict[str, Any], stop: threading.Event) -> None:
        last = 0.0

        def report(progress: dict[str, Any]) -> None:
            nonlocal last
            now = time.monotonic()
            if (
                "done" in progress
                and progress["done"] != progress.get("total")
                and now - last < PROGRESS_EVERY_S
            ):
                return
            last = now
            self._writer.send({"id": request, "progress": progress})

        try:
            value = self._do(
                str(message.get("ask")), message.get("args") or {}, message.get("fence"), report, stop
            )
            answer: dict[str, Any] = {"id": request, "ok": True, "value": value}
        except Refused as error:
            fault = {"kind": error.kind, "message": str(error), "evidence": error.evidence[:50]}
            answer = {"id": request, "ok": False, "error": fault}
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            answer = {
                "id": request,
                "ok": False,
                "error": {"kind": "failed", "message": f"{where}{error.strerror or error}"},
            }
        except (KeyError, TypeError, ValueError) as error:
            text = f"{message.get('ask')}: unusable arguments: {type(error).__name__}: {error}"
            answer = {"id": request, "ok": False, "error": {"kind": "protocol", "message": text[:1000]}}
        with self._lock:
            self._stops.pop(request, None)
        self._writer.send(answer)

    def _do(
        self, ask: str, args: dict[str, Any], fence: int | None, report: Report, stop: threading.Event
    ) -> dict[str, Any]:
        if ask in ACTIONS:
            self._lease.check(fence)
            return ACTIONS[ask](self._home, args, report)
        match ask:
            case "ping":
                return {"node": self._home.node, "now_unix_s": time.time()}
            case "facts":
                return look.facts(self._home, args)
            case "lease":
                return {"fence": self._lease.take(str(args["holder"]))}
            case "release":
                self._lease.give()
                return {}
            case "offer":
                return blobs.offer(self._home, args, report, stop)
            case "verify":
                return tree.verify(Path(args["path"]), report)
            case "image-offer":
                return image.offer(self._home, args, report)
            case "ping_peers":
                return doctor.ping(self._home, args)
            case "probe":
                serving = any(rank["alive"] for rank in look.ranks(self._home))
                return doctor.probe(self._home, args, report, serving=serving)
            case "keep_probes":
                return doctor.keep(self._home, args)
            case "rights":
                return rights.listed(args)
            case "repair":
                return doctor.repair(self._home, args)
            case "confirm_repair":
                return doctor.confirm(self._home, args)
            case "authorize":
                return authorize.add(args, Path.home())
            case "rest":
                return desired.rest(self._home, args)
            case "pulse":
                return pulse.read(self._home, args)
            case "canary":
                return probe.ask(self._home, args)
            case "shown":
                return shown.read(self._home, args)
            case "paced":
                return paced.read(self._home, args)
            case "boot_done":
                return boots.complete(self._home, args)
            case "boots":
                return boots.records(self._home, args)
            case "sources":
                return sources.read(self._home, args)
            case "holders":
                return holders.read(self._home, args)
            case "evidence":
                return evidence.read(self._home, args)
            case "smoke":
                return probe.check(self._home, args, report)
            case "busy":
                return busy.read(self._home)
            case "load":
                return load.run(args, report, stop)
            case "logs":
                return journal.read(self._home, args, report, stop)
            case "watch":
                return watch.stream(self._home, args, report, stop)
        raise Refused(f"this agent does not know {ask!r}", kind="protocol")

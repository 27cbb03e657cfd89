"""verify: every shard hashed on every node that has files of its own, all at once, and compared."""

from __future__ import annotations

from typing import Any

from orchestrator.each import each
from orchestrator.errors import Exit
from orchestrator.model.event import Progress
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Progressed, Reply
from orchestrator.verbs import Answer, Session

VERIFY_TIMEOUT_S = 6 * 3600.0
"""510 GB at 50 MB/s take three hours: the slowest disk worth serving from."""


async def verify_checkpoint(session: Session) -> Answer:
    """Digests of the files on the owner and on every node with its own copy. Changes nothing."""
    session.listen_for_interrupt()
    cluster = session.cluster
    places = {node.name: node.checkpoint_path for node in cluster.nodes if node.checkpoint_path is not None}
    if cluster.checkpoint is not None:
        places[cluster.checkpoint.node] = cluster.checkpoint.path
    async with session.world() as world:

        async def one(name: str) -> Reply:
            last = Reply({}, Failure(name, "protocol", "verify: no reply"))
            async for message in world.nodes[name].ask(
                Ask("verify", {"path": places[name]}), timeout_s=VERIFY_TIMEOUT_S
            ):
                match message:
                    case Progressed(data=data):
                        counts = int(data.get("done", 0)), int(data.get("total", 0))
                        session.emit(Progress(name, "verify", *counts, "bytes"))
                    case Reply():
                        last = message
            return last

        replies = await each(places, one)
    return judge(
        {name: answer.value for name, answer in replies.items() if answer.failure is None},
        [answer.failure for answer in replies.values() if answer.failure is not None],
    )


def judge(found: dict[str, dict[str, Any]], failures: list[Failure]) -> Answer:
    """What the nodes hashed, against what is known and against each other. Pure."""
    nodes = {}
    reference = next(iter(found.values()), {}).get("files", {})
    for name, value in found.items():
        differs = [
            f"{file}: digest {digest[:12]}, another node has {reference[file][:12]}"
            for file, digest in value["files"].items()
            if file in reference and reference[file] != digest
        ]
        faults = [*value["faults"], *value["wrong"], *differs]
        nodes[name] = {"files": len(value["files"]), "unknown": len(value["unknown"]), "faults": faults}
    ok = not failures and bool(nodes) and not any(entry["faults"] for entry in nodes.values())
    data = {
        "schema": "sparkyard/verify/v1",
        "ok": ok,
        "nodes": nodes,
        "failures": [{"node": one.node, "message": one.message, "remedy": one.remedy} for one in failures],
    }
    unreachable = any(one.kind in {"unreachable", "timeout"} for one in failures)
    code = Exit.FINE if ok else Exit.UNDETERMINED if unreachable else Exit.FAILED
    return Answer(data, code)

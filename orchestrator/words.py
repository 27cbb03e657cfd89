"""Actions and conditions in a few words, for people. The same words in plan, progress and events."""

from __future__ import annotations

import re
from typing import assert_never

from orchestrator.model.facts import RankFacts
from orchestrator.model.step import (
    Action,
    AskCanary,
    AttachCheckpoint,
    BuildImage,
    Condition,
    DetachCheckpoint,
    ExportCheckpoint,
    FetchBlob,
    FetchDone,
    InstallEngine,
    MemoryBack,
    OfferImage,
    OpenGate,
    PackDone,
    ProveCheckpoint,
    PullImage,
    PutBlob,
    RankAt,
    RunSmoke,
    SetDesired,
    StartFetch,
    StartPack,
    StartRank,
    StopRank,
    UnexportCheckpoint,
)

PERCENT = re.compile(r"\b(\d{1,3})% Completed")
"""How SGLang's loaders tell how far they are."""


def action(value: Action) -> str:
    """What is done."""
    match value:
        case PutBlob(digest=digest, size_bytes=size):
            return f"receive engine package {digest[:12]} ({size:,} bytes)"
        case FetchBlob(digest=digest, source=source):
            return f"fetch engine package {digest[:12]} from {source}"
        case InstallEngine(digest=digest):
            return f"install engine package {digest[:12]}"
        case BuildImage(content=content, base=base):
            return f"build image {content[:12]} on {base or 'the base of its recipe'}"
        case OfferImage(content=content, readers=readers):
            return f"offer image {content[:12]} to {', '.join(readers)}"
        case PullImage(content=content, sources=sources):
            return f"pull image {content[:12]} over {', '.join(sources[0])}"
        case StartFetch(repository=repository, revision=revision, path=path):
            return f"fetch {repository} at {revision[:12]} into {path}"
        case ExportCheckpoint(path=path, clients=clients):
            return (
                f"export {path} read-only to {', '.join(clients)} (kept in /etc/exports.d/sparkyard.exports)"
            )
        case UnexportCheckpoint(path=path):
            return f"take back the export of {path} (and /etc/exports.d/sparkyard.exports)"
        case DetachCheckpoint(source=source):
            return f"unmount the checkpoint of {source} (and its line in /etc/fstab)"
        case AttachCheckpoint(mode="nfs", server=server, folder=folder, path=path, options=options):
            return f"mount {server}:{folder or path} ({options}; kept in /etc/fstab)"
        case AttachCheckpoint(mode=mode, source=source):
            return f"reach the checkpoint of {source} ({mode})"
        case ProveCheckpoint(blocks=blocks):
            return f"read the index and {blocks} blocks of the checkpoint"
        case StartPack(rank=rank, store=store, what=what):
            return f"start packing the {what} of rank {rank} into store {store[:12]}"
        case SetDesired(deployment=deployment, generation=generation, state=state):
            return f"desired: {deployment} {state}, generation {generation}"
        case StartRank(rank=rank, generation=generation):
            return f"start rank {rank} (generation {generation})"
        case OpenGate():
            return "open the launch gate"
        case StopRank(rank=rank, generation=generation):
            return f"stop rank {rank} (generation {generation})"
        case AskCanary():
            return "ask the canary"
        case RunSmoke():
            return "smoke the API"
        case _:
            assert_never(value)


def condition(value: Condition) -> str:
    """What is waited for."""
    match value:
        case FetchDone():
            return "every file of the checkpoint is here and checked"
        case PackDone(store=store):
            return f"store {store[:12]} complete"
        case RankAt(rank=rank, phase=phase):
            return f"rank {rank} at {phase}"
        case MemoryBack(available_bytes=wanted):
            return f"{wanted / 2**30:.1f} GiB available"
        case _:
            assert_never(value)


def phase(rank: RankFacts) -> str:
    """Where a rank's boot is: the phase, how much of the weights is loaded, what the KV pool became."""
    if rank.phase == "loading":
        told = [int(match[1]) for line in rank.log_tail for match in PERCENT.finditer(line)]
        return f"loading {told[-1] // 10 * 10} %" if told else "loading"
    if rank.kv_tokens is not None and rank.phase in {"kv", "graphs", "ready"}:
        asked = f" of {rank.kv_tokens_asked:,} asked" if rank.kv_tokens_asked else ""
        return f"{rank.phase}, {rank.kv_tokens:,} KV tokens{asked}"
    return rank.phase

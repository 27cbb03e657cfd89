"""Whether every rank would be started from the same: libraries, tables, slices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from orchestrator.model.facts import Digest, Text
from orchestrator.model.frozen import Frozen
from orchestrator.model.goal import Goal
from orchestrator.model.profile import EnvSetting, FlagSetting
from orchestrator.model.step import Failure

DIGESTS, AUTOTUNE, STORES = "digests", "autotune", "stores"
ITEMS = (DIGESTS, AUTOTUNE, STORES)
"""What `--ignore` accepts of these."""
Bounded = Annotated[int, Field(ge=0, le=1 << 60)]
Range = tuple[Bounded, Bounded]


class Layer(Frozen):
    """One layer of a packed store: rows of the whole table, rows here, and their ranges (first, end)."""

    layer: int
    table_rows: Bounded
    rows: Bounded
    ranges: tuple[Range, ...] = Field(max_length=1024)


class Tables(Frozen):
    """A packed Engram store."""

    store_id: Digest
    revision: Text
    index_sha256: Digest
    tp: int
    rank: int
    ownership: Text
    layers: tuple[Layer, ...] = Field(max_length=64)


class Kind(Frozen):
    """Tensors of one kind of name in a slice store. `pieces`: source, length, target along `axis`, None: whole."""

    name: Text
    axis: int | None
    shape: tuple[Bounded, ...] = Field(max_length=8)
    pieces: tuple[tuple[Bounded, Bounded, Bounded], ...] = Field(default=(), max_length=4096)
    filled: tuple[Bounded, ...] = Field(default=(), max_length=2)
    count: int


class Slices(Frozen):
    """A slice store."""

    id: Digest
    revision: Text
    index_sha256: Digest
    tp: int
    rank: int
    padding: dict[str, Any]
    kinds: tuple[Kind, ...] = Field(max_length=2000)


class Sources(Frozen):
    """What the agent's request `sources` answers for one rank. None: not there, or not asked for."""

    plugin: Digest | None = None
    nccl: Digest | None = None
    files: dict[str, Digest | None] = Field(default_factory=dict, max_length=64)
    autotune: dict[str, Digest] = Field(default_factory=dict, max_length=64)
    tables: Tables | None = None
    slices: Slices | None = None


def named_files(goal: Goal) -> tuple[str, ...]:
    """Files that the profile names by absolute path, such as tables of the speculation; None of them need exist."""
    values = [
        str(setting.value)
        for setting in goal.profile.settings
        if isinstance(setting, FlagSetting | EnvSetting)
    ]
    own = [goal.profile.nccl.library] if goal.profile.nccl else []
    return tuple(dict.fromkeys(value for value in (*own, *values) if value.startswith("/")))


def compare(
    goal: Goal, index_sha256: str, seen: Mapping[int, Sources], ignore: Iterable[str] = ()
) -> tuple[Failure, ...]:
    """What differs between ranks that must not. `seen` by rank; items in ``ignore`` are left out."""
    left_out = set(ignore)
    found: list[Failure] = []
    if DIGESTS not in left_out:
        found += _equal(goal, "the plug-in's package", {rank: one.plugin for rank, one in seen.items()})
        found += _equal(goal, "the NCCL library", {rank: one.nccl for rank, one in seen.items()})
        found += _own_nccl(goal, seen)
        own = {goal.profile.nccl.library} if goal.profile.nccl else set()
        for path in sorted({path for one in seen.values() for path in one.files} - own):
            found += _equal(goal, path, {rank: one.files.get(path) for rank, one in seen.items()})
    if AUTOTUNE not in left_out and goal.cluster.topology != "single-host":
        # ranks of one host share a home, in which another engine may have left results of its own
        found += _autotune(goal, seen)
    if STORES not in left_out:
        if goal.profile.engram.mode == "disk":
            found += _tables(goal, index_sha256, seen)
        if goal.slices(0, index_sha256) is not None:
            found += _slices(goal, index_sha256, seen)
    return tuple(found)


def _refuse(goal: Goal, rank: int, text: str, remedy: str, item: str) -> Failure:
    return Failure(
        goal.ranked[rank].name, "refused", f"rank {rank}: {text}", f"{remedy}; --ignore {item} accepts it"
    )


def _equal(goal: Goal, what: str, digests: Mapping[int, str | None]) -> list[Failure]:
    """Rank 0's is the one to be equal to."""
    first = digests.get(0)
    return [
        _refuse(
            goal,
            rank,
            f"{what} is {_short(digest)} here, {_short(first)} on {goal.ranked[0].name}",
            "make them the same: ranks with different code hang without an error",
            DIGESTS,
        )
        for rank, digest in sorted(digests.items())
        if digest != first
    ]


def _own_nccl(goal: Goal, seen: Mapping[int, Sources]) -> list[Failure]:
    """The library that the profile names must be the very one, not only the same everywhere."""
    nccl = goal.profile.nccl
    if nccl is None:
        return []
    return [
        _refuse(
            goal,
            rank,
            f"{nccl.library} is {_short(one.files.get(nccl.library))}, the profile names {_short(nccl.sha256)}",
            f"put it there ({nccl.source})",
            DIGESTS,
        )
        for rank, one in sorted(seen.items())
        if one.files.get(nccl.library) != nccl.sha256
    ]


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "not there"


def _autotune(goal: Goal, seen: Mapping[int, Sources]) -> list[Failure]:
    found, first = [], seen[0].autotune if 0 in seen else {}
    for rank, one in sorted(seen.items()):
        differing = sorted(key for key in {*one.autotune, *first} if one.autotune.get(key) != first.get(key))
        if differing:
            text = f"the tuning results {differing[0]} are {_short(one.autotune.get(differing[0]))} here, "
            text += f"{_short(first.get(differing[0]))} on {goal.ranked[0].name}"
            remedy = "copy them, or remove them everywhere: SGLang throws all of them away and tunes for many minutes"
            found.append(_refuse(goal, rank, text, remedy, AUTOTUNE))
    return found


def _tables(goal: Goal, index_sha256: str, seen: Mapping[int, Sources]) -> list[Failure]:
    profile, found = goal.profile, []
    for rank, one in sorted(seen.items()):
        wanted = {
            "store_id": goal.store(rank, index_sha256),
            "revision": profile.model.revision,
            "index_sha256": index_sha256,
            "tp": profile.parallel.tp,
            "rank": rank,
            "ownership": profile.engram.ownership,
        }
        found += _identity(goal, rank, "packed tables", one.tables, wanted)
    if found:
        return found
    stores = {rank: one.tables for rank, one in sorted(seen.items()) if one.tables is not None}
    for layer in sorted({each.layer for store in stores.values() for each in store.layers}):
        parts = {rank: [e for e in store.layers if e.layer == layer] for rank, store in stores.items()}
        rows = {each.table_rows for entries in parts.values() for each in entries}
        owned = [
            (first, end, rank)
            for rank, entries in parts.items()
            for each in entries
            for first, end in each.ranges
        ]
        fault = "its ranks do not agree on the table's size" if len(rows) != 1 else gap(owned, min(rows))
        if fault:
            remedy = "remove the store (sparkyard prune) and pack again"
            found.append(_refuse(goal, 0, f"packed tables, layer {layer}: {fault}", remedy, STORES))
    return found


def _identity(
    goal: Goal, rank: int, what: str, store: Tables | Slices | None, wanted: Mapping[str, Any]
) -> list[Failure]:
    if store is None:
        return [_refuse(goal, rank, f"no {what}", "sparkyard pack", STORES)]
    return [
        _refuse(
            goal,
            rank,
            f"{what} have {key} {str(getattr(store, key))[:64]}, expected {str(value)[:64]}",
            "remove the store and pack again",
            STORES,
        )
        for key, value in wanted.items()
        if getattr(store, key) != value
    ]


def gap(owned: Iterable[tuple[int, int, int]], size: int) -> str:
    """What keeps ranges (first, end, rank) from covering 0 … size once each; empty when they do."""
    at, before = 0, None
    for first, end, rank in sorted(owned):
        if first < at:
            return f"{first} … {min(at, end)} belongs to rank {before} and to rank {rank}"
        if first > at:
            return f"{at} … {first} belongs to no rank"
        at, before = end, rank
    if at != size:
        return f"{min(at, size)} … {max(at, size)} " + (
            "belongs to no rank" if at < size else "is beyond the end"
        )
    return ""


def _slices(goal: Goal, index_sha256: str, seen: Mapping[int, Sources]) -> list[Failure]:
    profile, found = goal.profile, []
    padding = profile.parallel.padding
    for rank, one in sorted(seen.items()):
        wanted = {
            "id": goal.slices(rank, index_sha256),
            "revision": profile.model.revision,
            "index_sha256": index_sha256,
            "tp": profile.parallel.tp,
            "rank": rank,
            "padding": padding.model_dump() if padding else {},
        }
        found += _identity(goal, rank, "weight slices", one.slices, wanted)
    if found:
        return found
    stores = {rank: one.slices for rank, one in sorted(seen.items()) if one.slices is not None}
    by_kind: dict[tuple[str, int | None, tuple[int, ...]], dict[int, list[Kind]]] = {}
    for rank, store in stores.items():
        for kind in store.kinds:
            by_kind.setdefault((kind.name, kind.axis, kind.shape), {}).setdefault(rank, []).append(kind)
    for (name, axis, shape), parts in by_kind.items():
        if fault := _kind_fault(set(stores), axis, shape, parts):
            remedy = "remove the store and pack again"
            found.append(_refuse(goal, 0, f"weight slices, {name}: {fault}", remedy, STORES))
    return found


def _kind_fault(
    ranks: set[int], axis: int | None, shape: tuple[int, ...], parts: Mapping[int, list[Kind]]
) -> str:
    """All ranks have as many; of a split tensor each has its own range of the padded axis, and together all of it."""
    if missing := sorted(ranks - set(parts)):
        return f"rank {missing[0]} has none"
    counts = {rank: sum(kind.count for kind in kinds) for rank, kinds in parts.items()}
    if len(set(counts.values())) != 1:
        return "the ranks have " + ", ".join(f"{count} (rank {rank})" for rank, count in counts.items())
    if axis is None or any(len(kinds) != 1 for kinds in parts.values()):
        return ""
    if axis >= len(shape):
        return f"axis {axis} of a tensor with {len(shape)} axes"
    filled = [(*kinds[0].filled, rank) for rank, kinds in parts.items() if len(kinds[0].filled) == 2]
    if len(filled) == len(parts) and all(span[:2] == (0, shape[axis]) for span in filled):
        return ""  # padded, and whole on every rank (the sinks of attention)
    if fault := gap([(first, end, rank) for first, end, rank in filled if end > first], shape[axis]):
        return fault
    read = [
        (source, source + length, rank)
        for rank, kinds in parts.items()
        for source, length, _ in kinds[0].pieces
        if length
    ]
    return gap(read, max((end for _, end, _ in read), default=0))

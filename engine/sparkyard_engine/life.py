"""The plug-in's proof of life (``proof.json``): what this rank and all the others have become, checked by
each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sparkyard_engine.asked import Asked, RefusedError
from sparkyard_engine.embedding import Tables
from sparkyard_engine.files import write_json
from sparkyard_engine.meters import Meters
from sparkyard_engine.source import Source, is_draft

SCHEMA = "sparkyard/plugin-proof/v1"
FILE = "proof.json"
AGREED = ("tp", "mode", "ownership", "padded", "slots")  # must be equal on all ranks


@dataclass(frozen=True, slots=True)
class Active:
    """The plug-in as installed in this process."""

    want: Asked
    tables: Tables | None
    hooks: tuple[str, ...]
    source: Source

    def check_model(self, model: Any) -> None:
        """Raises RefusedError unless the model has the shapes and the tables that were asked for."""
        from sglang.srt.layers.engram import EngramEmbedding

        self.check_shapes(model.config)
        want = self.want
        embeddings = [part for part in model.modules() if isinstance(part, EngramEmbedding)]
        if len(embeddings) != len(want.engram_layers):
            raise RefusedError(
                f"the model has {len(embeddings)} Engram tables, its config names {want.engram_layers}"
            )
        opened = () if self.tables is None else tuple(sorted(self.tables.readers))
        if self.tables is not None and opened != tuple(sorted(want.engram_layers)):
            raise RefusedError(
                f"Engram tables of layers {opened} are read from disk, asked: {want.engram_layers}"
            )

    def check_shapes(self, config: Any) -> None:
        """Raises RefusedError unless the model, or the draft, has the padded shapes."""
        want = self.want
        found = (int(config.num_attention_heads), int(config.o_groups))
        if found != (want.heads, want.groups):
            raise RefusedError(
                f"the model has {found[0]} heads in {found[1]} groups, the rank spec asks for {want.heads} in "
                f"{want.groups}: is --json-model-override-args missing?"
            )

    def loads(self, name: str) -> bool:
        """Whether the main model loads this tensor: not the draft's, and not the tables that are read from disk."""
        return not is_draft(name) and (self.tables is None or ".engram.embed." not in name)

    def report(self, padded: int) -> dict[str, Any]:
        """This rank's row of the proof."""
        disk = self.want.disk
        return {
            "rank": self.want.rank,
            "tp": self.want.tp,
            "pid": os.getpid(),
            "mode": self.want.mode,
            "ownership": None if disk is None else str(disk.identity.ownership),
            "store_id": None if disk is None else disk.identity.store_id,
            "padded": padded,
            "slots": list(self.want.plan.placement.slots),
        }


def prove(active: Active, padded: int) -> None:
    """Collective over all ranks: tells them what this one is, checks what they are, and writes
    ``proof.json``.

    Raises RefusedError on every rank when the ranks do not fit together.
    """
    import torch.distributed as dist
    from sglang.srt.runtime_context import get_parallel

    want, mine = active.want, active.report(padded)
    if (found := get_parallel().tp_rank) != want.rank:
        raise RefusedError(f"SGLang runs this process as rank {found}, the rank spec says {want.rank}")
    rows: list[Any] = [None] * want.tp
    dist.all_gather_object(rows, mine, group=get_parallel().tp_group.cpu_group)
    if faults := disagreements(rows):
        raise RefusedError("the ranks do not fit together: " + "; ".join(faults))
    meters = Meters(want.rank, want.mode, want.directory)
    engram: dict[str, Any] = {
        "mode": want.mode,
        "store_id": mine["store_id"],
        "layers": list(want.engram_layers),
        "ownership": mine["ownership"],
        "backend": None,
    }
    if active.tables is not None:
        readers = active.tables.readers
        engram["backend"] = {str(layer): reader.backend_note for layer, reader in sorted(readers.items())}
        active.tables.meters = meters
        for layer in readers:
            active.tables.count(layer)
        meters.start_file()
    proof = {
        "schema": SCHEMA,
        "rank": want.rank,
        "tp": want.tp,
        "pid": mine["pid"],
        "engram": engram,
        "padded": padded,
        "weights": {
            "from": active.source.name,
            "note": active.source.note,
            "slice_bytes": active.source.slice_bytes,
        },
        "ranks": rows,
        "hooks": list(active.hooks),
        "sglang": version("sglang"),
    }
    write_json(want.directory / FILE, proof)


def disagreements(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why these ranks must not serve together; rows in the order of the group."""
    faults = []
    if (ranks := [row["rank"] for row in rows]) != list(range(len(rows))):
        faults.append(f"ranks are {ranks}")
    faults += [
        f"{key} differs: {[row[key] for row in rows]}"
        for key in AGREED
        if len({repr(row[key]) for row in rows}) > 1
    ]
    stores = [row["store_id"] for row in rows if row["store_id"] is not None]
    if len(set(stores)) != len(stores):
        faults.append(f"two ranks read the same store: {stores}")
    return faults

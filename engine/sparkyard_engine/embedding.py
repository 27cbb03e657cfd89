"""The Engram table that lives on disk: takes the place of SGLang's ``EngramEmbedding``."""

from __future__ import annotations

from typing import Any

from sparkyard_engine.asked import Disk, RefusedError
from sparkyard_engine.engram.hashing import WEIGHT_BYTES
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.meters import Meters


class Tables:
    """The open readers of one rank, by layer, and where their counters go."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.readers: dict[int, Reader] = {}
        self.lookups: dict[int, Any] = {}  # DiskEmbedding by layer: torch is not imported here
        self.hasher: Any = None  # SGLang's own, once it has been used
        self.on_device = False  # look-ups run as host functions of the device, out of Python's sight
        self._meters: Meters | None = None

    @property
    def meters(self) -> Meters | None:
        """None until the ranks have found each other."""
        return self._meters

    @meters.setter
    def meters(self, meters: Meters) -> None:
        self._meters = meters
        meters.poll = self._count_all if self.on_device else None

    def open(self, layer: int) -> Reader:
        """Raises StoreError when the store is not this rank's or not whole."""
        reader = Reader(
            self.disk.store,
            layer,
            expected=self.disk.identity,
            backend=self.disk.backend,
            cache_bytes=self.disk.cache_bytes,
        )
        self.readers[layer] = reader
        return reader

    def count(self, layer: int) -> None:
        """After every batch; free until the meters exist."""
        if self._meters is not None:
            self._meters.count(layer, self.readers[layer].counters)

    def _count_all(self) -> None:
        for layer in self.readers:
            self.count(layer)


def disk_embedding(stock: type, tables: Tables) -> type:
    """A class with the contract of SGLang's ``EngramEmbedding`` (``stock``) that reads its rows from
    ``tables``.

    It has no parameters, so nothing of the table is loaded from the checkpoint.
    """
    import torch
    from sglang.srt.distributed import tensor_model_parallel_all_reduce
    from sglang.srt.runtime_context import get_parallel
    from torch import nn

    from sparkyard_engine.engram.torch_side.embedding import DiskEmbedding
    from sparkyard_engine.engram.torch_side.staging import Staging

    class DiskEngramEmbedding(stock):  # type: ignore[misc]
        """One layer's rows on this node's drive, the owned ones; the all-reduce adds the other ranks'."""

        def __init__(
            self, num_embeddings: int, dim: int, layer_id: int, column_bounds: tuple[int, ...]
        ) -> None:
            nn.Module.__init__(self)  # the stock constructor would allocate the table
            if column_bounds[-1] != num_embeddings or dim != WEIGHT_BYTES:
                raise RefusedError(
                    f"layer {layer_id}: the model has {num_embeddings} rows of {dim} values, its primes give "
                    f"{column_bounds[-1]} and a packed row holds {WEIGHT_BYTES}"
                )
            self.dim, self.layer_id = dim, layer_id
            self.tp_size = get_parallel().tp_size
            # What callers of the stock class look at; none of these layouts applies.
            self.host_table = None
            self.peer = None
            self.staged_by_scheduler = False
            self._sort_host_reads = False
            reader = tables.open(layer_id)
            if reader.header.table_rows != num_embeddings:
                raise RefusedError(
                    f"layer {layer_id}: the store was packed from a table of {reader.header.table_rows} rows, "
                    f"the model has {num_embeddings}"
                )
            device = torch.empty(0).device  # SGLang builds the model under the device that it will run on
            staging = None if device.type == "cpu" else Staging(reader, device)
            tables.on_device = staging is not None
            self.lookup = DiskEmbedding(
                reader, len(column_bounds) - 1, staging=staging, reduce=tensor_model_parallel_all_reduce
            )
            tables.lookups[layer_id] = self.lookup

        def forward(self, indices: Any, forward_batch: Any = None, *, cp_all_tokens: bool = False) -> Any:
            """Row ids int64[T, columns] → bfloat16[T, columns, 256], the same on every rank."""
            del forward_batch
            if cp_all_tokens or get_parallel().attn_dp_size > 1:
                raise RefusedError(
                    "rows from disk need tensor parallelism alone: no context or data parallelism"
                )
            try:
                rows = self.lookup.rows(indices)
            finally:
                if not tables.on_device:
                    tables.count(self.layer_id)
            return rows

        def finish_load(self, label: str) -> None:
            """Nothing was loaded."""

    return DiskEngramEmbedding

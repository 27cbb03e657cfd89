"""The Engram table that lives on disk: takes the place of SGLang's ``EngramEmbedding``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkyard_engine.asked import Disk, RefusedError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.meters import Meters

VALUES_PER_SCALE = WEIGHT_BYTES // SCALE_BYTES


class Tables:
    """The open readers of one rank, by layer, and where their counters go."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.readers: dict[int, Reader] = {}
        self.meters: Meters | None = None

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
        if self.meters is not None:
            self.meters.count(layer, self.readers[layer].counters)


def decode(weight: Any, scale: Any) -> Any:
    """uint8 tensors [n, 256] (e4m3 codes) and [n, 8] (e8m0 codes) → bfloat16 [n, 256], exactly as SGLang
    decodes."""
    import torch

    values = weight.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, VALUES_PER_SCALE))
    scales = scale.view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    return (values * scales).flatten(-2).to(torch.bfloat16)


def read(reader: Reader, ids: Any) -> Any:
    """Row ids int64[...] → bfloat16[..., 256] on the ids' device; rows of other ranks are zero."""
    import torch

    flat = ids.reshape(-1).to("cpu", torch.int64).contiguous().numpy()
    weight = np.empty((flat.size, WEIGHT_BYTES), dtype=np.uint8)
    scale = np.empty((flat.size, SCALE_BYTES), dtype=np.uint8)
    place = np.empty(flat.size, dtype=np.int32)
    distinct = reader.read_distinct(flat, weight, scale, place)
    rows = decode(
        torch.from_numpy(weight[:distinct]).to(ids.device), torch.from_numpy(scale[:distinct]).to(ids.device)
    )
    # Place −1, a row of another rank, takes the zero row at the end.
    table = torch.cat((rows, rows.new_zeros(1, WEIGHT_BYTES)))
    return table[torch.from_numpy(place).to(ids.device, torch.int64)].view(*ids.shape, WEIGHT_BYTES)


def disk_embedding(stock: type, tables: Tables) -> type:
    """A class with the contract of SGLang's ``EngramEmbedding`` (``stock``) that reads its rows from
    ``tables``.

    It has no parameters, so nothing of the table is loaded from the checkpoint.
    """
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
            self.columns = len(column_bounds) - 1
            self.on_device: DiskEmbedding | None = None
            self.reader = tables.open(layer_id)
            if self.reader.header.table_rows != num_embeddings:
                raise RefusedError(
                    f"layer {layer_id}: the store was packed from a table of {self.reader.header.table_rows} rows, "
                    f"the model has {num_embeddings}"
                )

        def forward(self, indices: Any, forward_batch: Any = None, *, cp_all_tokens: bool = False) -> Any:
            """Row ids int64[T, columns] → bfloat16[T, columns, 256], the same on every rank."""
            del forward_batch
            if cp_all_tokens or get_parallel().attn_dp_size > 1:
                raise RefusedError(
                    "rows from disk need tensor parallelism alone: no context or data parallelism"
                )
            if indices.shape[0] == 0:
                return self.new_rows(indices)
            if indices.is_cuda:
                return self.rows_on_device(indices)
            try:
                rows = read(self.reader, indices)
            finally:
                tables.count(self.layer_id)
            return tensor_model_parallel_all_reduce(rows) if self.tp_size > 1 else rows

        def rows_on_device(self, indices: Any) -> Any:
            """As `forward`, through pinned memory and a host function, so that CUDA graphs stay whole. A row that
            cannot be proven ends the process with one JSON line in the engine's log."""
            if self.on_device is None:
                reduce = tensor_model_parallel_all_reduce if self.tp_size > 1 else None
                staging = Staging(self.reader, indices.device)
                self.on_device = DiskEmbedding(self.reader, self.columns, staging=staging, reduce=reduce)
            rows = self.on_device.rows(indices)
            tables.count(self.layer_id)
            return rows

        def finish_load(self, label: str) -> None:
            """Nothing was loaded."""

    return DiskEngramEmbedding

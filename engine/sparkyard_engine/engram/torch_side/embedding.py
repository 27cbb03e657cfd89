"""The whole lookup of one layer: [tokens, columns] of row ids → bf16 [tokens, columns, 256], equal to a table in
memory.

Two ways to bring the ranks' rows together, bit-equal: `sum` leaves rows of other ranks zero and adds up over the ranks
(any ownership); `columns` reads only the own columns and gathers them (ownerships that give whole columns, equal in
number).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum

import numpy as np
import torch

from sparkyard_engine.engram.errors import ConfigError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.ownership import columns_of
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.dequant import dequantise
from sparkyard_engine.engram.torch_side.staging import Staging, Ticket


class Combine(StrEnum):
    """How the ranks' rows come together."""

    SUM = "sum"
    COLUMNS = "columns"


Reduce = Callable[[torch.Tensor], torch.Tensor]  # bf16[…] → its sum over the ranks
Distinct = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # weights, scales, and which of them each id has
GatherRanks = Callable[
    [torch.Tensor], torch.Tensor
]  # bf16[T, c, 256] → bf16[tp, T, c, 256], in order of ranks


class DiskEmbedding:
    """Looks rows up through `reader`; on a CUDA device through `staging`, which may be captured.

    columns: hash columns of the layer (24). reduce / gather: the group's collectives, None on one rank.
    """

    def __init__(
        self,
        reader: Reader,
        columns: int,
        *,
        staging: Staging | None = None,
        combine: Combine = Combine.SUM,
        reduce: Reduce | None = None,
        gather: GatherRanks | None = None,
    ) -> None:
        """Raises ConfigError for a combination that cannot work."""
        identity = reader.header.identity
        self.reader, self.staging, self.combine = reader, staging, combine
        self.columns, self.tp = columns, identity.tp
        self._reduce, self._gather = reduce, gather
        self._pending: tuple[torch.Tensor, Ticket | Future[Distinct]] | None = None
        self._aside: ThreadPoolExecutor | None = None
        own = columns_of(identity.ownership, columns, identity.tp, identity.rank)
        self._own: Sequence[int] | None = own
        if combine is Combine.COLUMNS:
            if own is None or columns % identity.tp:
                raise ConfigError(
                    f"{identity.ownership} at tp {identity.tp} does not give equal whole columns"
                )
            order = [
                columns_of(identity.ownership, columns, identity.tp, rank) for rank in range(identity.tp)
            ]
            flat = [column for part in order if part is not None for column in part]
            self._inverse = torch.as_tensor(np.argsort(flat))
        if identity.tp > 1 and (reduce if combine is Combine.SUM else gather) is None:
            raise ConfigError(f"tp {identity.tp} needs a collective for {combine}")

    def _own_columns(self) -> slice:
        """The columns this rank looks up: all of them where its rule cuts through columns."""
        if self._own is None or not self._own:
            return slice(None)
        step = self._own[1] - self._own[0] if len(self._own) > 1 else 1
        return slice(self._own[0], self._own[-1] + 1, step)

    def _own_ids(self, indices: torch.Tensor) -> torch.Tensor:
        """The ids this rank has to look up, int64, contiguous: columns of others hold no row of its own, and leaving
        them out keeps the staging buffers at a tp-th of their size.
        """
        return indices[..., self._own_columns()].contiguous()

    def _spread(self, index: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The places of the own columns' rows as places for every column of the output, −1 for those of others."""
        columns = self._own_columns()
        if self.combine is Combine.COLUMNS or columns == slice(None) or index.numel() == shape.numel():
            return index
        out = torch.full(shape, -1, dtype=torch.int32, device=index.device)
        out[..., columns] = index.view(out[..., columns].shape)
        return out.view(-1)

    def prefetch(self, indices: torch.Tensor) -> None:
        """Starts a lookup aside, on a stream of its own (on a CPU in a thread); `rows` of the same tensor joins it.

        The ids must not be changed in between, and every prefetch must be joined before a capture ends.
        """
        self._drop()
        if not indices.numel():
            return
        ids = self._own_ids(indices)
        if self.staging is not None:
            self._pending = (indices, self.staging.start(ids, aside=True))
            return
        if self._aside is None:
            self._aside = ThreadPoolExecutor(1, thread_name_prefix="engram-prefetch")
        self._pending = (indices, self._aside.submit(self._read_on_cpu, ids))

    def _drop(self) -> None:
        """Waits for a prefetch that nobody asked for: its buffers are about to be used again."""
        pending, self._pending = self._pending, None
        match pending:
            case (_, Ticket() as ticket) if self.staging is not None:
                self.staging.join(ticket)
            case (_, Future() as future):
                future.exception()  # if it concerns rows that are wanted, their own lookup meets it again

    def _distinct(self, indices: torch.Tensor) -> Distinct:
        """The rows of these ids: prefetched, if these very ones were, else read now.

        The pending tensor is kept alive, so no other can have its address.
        """
        match self._pending:
            case (ids, started) if (ids.data_ptr(), ids.shape, ids.stride()) == (
                indices.data_ptr(),
                indices.shape,
                indices.stride(),
            ):
                self._pending = None
                if isinstance(started, Future):
                    return started.result()
                assert self.staging is not None  # noqa: S101 - only it gives tickets
                return self.staging.join(started)
        self._drop()
        ids = self._own_ids(indices)
        return self._read_on_cpu(ids) if self.staging is None else self.staging.join(self.staging.start(ids))

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """int64[T, columns] → bf16[T, columns, 256]; collective when tp > 1."""
        if indices.numel() == 0:
            self._drop()
            return torch.empty((*indices.shape, WEIGHT_BYTES), dtype=torch.bfloat16, device=indices.device)
        own = indices[..., self._own_columns()].shape
        shape = own if self.combine is Combine.COLUMNS else indices.shape
        weight, scale, index = self._distinct(indices)
        mine = torch.empty((*shape, WEIGHT_BYTES), dtype=torch.bfloat16, device=indices.device)
        # A sum over ranks turns −0 into +0 by itself; gathered columns have to do it here.
        flat = mine.view(-1, WEIGHT_BYTES)
        dequantise(weight, scale, self._spread(index, shape), flat, positive_zero=self.tp > 1)
        return self._together(mine)

    def _read_on_cpu(self, ids: torch.Tensor) -> Distinct:
        flat = ids.reshape(-1).numpy()
        weight = np.empty((len(flat), WEIGHT_BYTES), dtype=np.uint8)
        scale = np.empty((len(flat), SCALE_BYTES), dtype=np.uint8)
        index = np.empty(len(flat), dtype=np.int32)
        count = self.reader.read_distinct(flat, weight, scale, index)
        return torch.from_numpy(weight[:count]), torch.from_numpy(scale[:count]), torch.from_numpy(index)

    def _together(self, mine: torch.Tensor) -> torch.Tensor:
        if self.tp == 1:
            return mine
        if self.combine is Combine.SUM:
            assert self._reduce is not None  # noqa: S101  # checked at construction
            return self._reduce(mine)
        assert self._gather is not None  # noqa: S101
        parts = self._gather(mine)  # [tp, T, c, 256]
        joined = parts.movedim(0, -3).flatten(-3, -2)  # [T, tp × c, 256], columns in order of owners
        if (
            self._inverse.device != joined.device
        ):  # once, by the eager call that warms: a capture cannot copy it
            self._inverse = self._inverse.to(joined.device)
        return joined.index_select(-2, self._inverse)

"""The way of one batch: ids → pinned memory → host function (the native reader) → pinned rows → device.

Buffers are persistent, a power of two in size, and made and warmed outside of any capture, because a captured graph
keeps their addresses. On a device that shares the host's memory nothing is copied: the kernel reads the pinned rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from sparkyard_engine.engram.errors import ConfigError, EngramError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.native import library
from sparkyard_engine.engram.native_rows import NativeRows
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.hostnode import Lookup, launch

MIN_CAPACITY: Final = 256


class NotWarmError(EngramError):
    """A capture asked for a size that was never warmed: the graph would keep memory that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Memory of one capacity. `device_*` are the host tensors themselves where memory is shared."""

    ids: torch.Tensor  # int64[capacity], pinned
    weight: torch.Tensor  # uint8[capacity, 256], pinned
    scale: torch.Tensor  # uint8[capacity, 8], pinned
    index: torch.Tensor  # int32[capacity], pinned
    device_weight: torch.Tensor
    device_scale: torch.Tensor
    device_index: torch.Tensor

    @classmethod
    def new(cls, capacity: int, device: torch.device, shared: bool) -> Buffers:
        """Zeroed."""

        def pinned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=True)

        weight = pinned(capacity, WEIGHT_BYTES, dtype=torch.uint8)
        scale = pinned(capacity, SCALE_BYTES, dtype=torch.uint8)
        index = pinned(capacity, dtype=torch.int32)
        host = (weight, scale, index)
        there = host if shared else tuple(torch.zeros_like(each, device=device) for each in host)
        return cls(pinned(capacity, dtype=torch.int64), weight, scale, index, there[0], there[1], there[2])


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch under way: where its rows will be once `done` (if any) has passed."""

    ids: torch.Tensor
    buffers: Buffers
    count: int
    done: torch.cuda.Event | None


class Staging:
    """Lookups of one layer on one CUDA device.

    report: an open file descriptor that gets one JSON line when a row cannot be proven (−1: only standard error does).
    exit_on_fault: end the process then, before a token can leave; off only in tests that look at the poisoned rows.
    """

    def __init__(
        self, reader: Reader, device: torch.device, *, report: int = -1, exit_on_fault: bool = True
    ) -> None:
        """Raises ConfigError without the native reader."""
        native = library()
        if native is None or not isinstance(reader.rows, NativeRows):
            raise ConfigError("CUDA needs the native reader (its host functions run without Python)")
        self._rows, self._function = reader.rows, native.lib.sy_lookup
        self.reader, self.device = reader, device
        self.shared = bool(torch.cuda.get_device_properties(device).is_integrated)
        self.failed = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._report, self._exit = report, exit_on_fault
        self._buffers: dict[int, Buffers] = {}
        self._lookups: list[Lookup] = []  # graphs hold their addresses: never freed
        self._eager: dict[tuple[int, int], Lookup] = {}
        self.side = torch.cuda.Stream(device)

    def warm(self, count: int) -> Buffers:
        """Makes the buffers for batches of `count` ids. Raises NotWarmError inside a capture."""
        capacity = max(MIN_CAPACITY, 1 << max(count - 1, 0).bit_length())
        found = self._buffers.get(capacity)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise NotWarmError(
                    f"layer {self.reader.header.layer}: {count} rows asked for in a capture, warmed sizes are "
                    f"{sorted(self._buffers)}: call warm({count}) before the capture"
                )
            found = self._buffers[capacity] = Buffers.new(capacity, self.device, self.shared)
        return found

    def _lookup(self, buffers: Buffers, count: int) -> Lookup:
        capturing = torch.cuda.is_current_stream_capturing()
        key = (len(buffers.ids), count)
        if not capturing and key in self._eager:
            return self._eager[key]
        lookup = Lookup(
            reader=self._rows.handle,
            ids=buffers.ids.data_ptr(),
            count=count,
            weight=buffers.weight.data_ptr(),
            scale=buffers.scale.data_ptr(),
            index=buffers.index.data_ptr(),
            failed=self.failed.data_ptr(),
            report=self._report,
            layer=self.reader.header.layer,
            exit_on_fault=int(self._exit),
        )
        if capturing:
            self._lookups.append(lookup)
        else:
            self._eager[key] = lookup
        return lookup

    def start(self, ids: torch.Tensor, *, aside: bool = False) -> Ticket:
        """Queues the lookup of ids int64[n] (device, contiguous) on the current stream, or `aside` on a stream of its
        own that waits for the current one.
        """
        count = ids.numel()
        buffers = self.warm(count)
        current = torch.cuda.current_stream(self.device)
        stream = self.side if aside else current
        if aside:
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            buffers.ids[:count].copy_(ids.reshape(-1), non_blocking=True)
            launch(self._function, self._lookup(buffers, count), stream)
            if not self.shared:
                buffers.device_index[:count].copy_(buffers.index[:count], non_blocking=True)
                buffers.device_weight[:count].copy_(buffers.weight[:count], non_blocking=True)
                buffers.device_scale[:count].copy_(buffers.scale[:count], non_blocking=True)
            if not aside:
                return Ticket(ids, buffers, count, None)
            if not torch.cuda.is_current_stream_capturing():
                ids.record_stream(stream)
            done = torch.cuda.Event()
            done.record(stream)
        return Ticket(ids, buffers, count, done)

    def join(self, ticket: Ticket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(weight, scale, index) of the batch, for work queued on the current stream from here on."""
        if ticket.done is not None:
            torch.cuda.current_stream(self.device).wait_event(ticket.done)
        buffers, count = ticket.buffers, ticket.count
        return buffers.device_weight, buffers.device_scale, buffers.device_index[:count]

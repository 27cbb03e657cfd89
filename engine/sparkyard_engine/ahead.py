"""Reads aside: a step's rows as soon as their ids exist, and the next prefill chunk's rows while this one computes.

Two switches, `engram_prefetch` and `engram_look_ahead`; neither changes a bit of any answer. The second needs a row
cache that holds a chunk (`engram_cache_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.drift import Symbol
from sparkyard_engine.embedding import Tables
from sparkyard_engine.engram.torch_side.look_ahead import LookAhead

PIECES: Final = "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph"
HASHER: Final = Symbol(
    "sglang.srt.layers.engram.EngramHasher.forward", ("self", "input_ids", "forward_batch")
)
RUN_BATCH: Final = Symbol(
    "sglang.srt.managers.scheduler.Scheduler.run_batch", ("self", "batch", "pp_proxy_tensors")
)
SYMBOLS: Final = (
    HASHER,
    RUN_BATCH,
    Symbol(f"{PIECES}.get_tc_piecewise_forward_context", ()),
    Symbol("sglang.srt.layers.engram.EngramHasher.hash_windows", ("self", "tokens", "blocked")),
    Symbol(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_extend_without_speculative", ("self",)
    ),
)


def hashed(tables: Tables, layers: Sequence[int], *, prefetch: bool) -> Callable[..., Any]:
    """Around the hasher: remembers it, and begins every layer's lookup of the ids that it has made.

    layers: in the order of the hash's second axis. Not between the pieces of a graph that was captured in pieces: there
    the ids are copied first, and the pieces' own lookups use the buffers.
    """
    from sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph import (
        get_tc_piecewise_forward_context,
    )

    def forward(original: Callable[..., Any], self: Any, input_ids: Any, forward_batch: Any) -> Any:
        tables.hasher = self
        hashes = original(self, input_ids, forward_batch)  # int64[T, layers, columns]
        if prefetch and get_tc_piecewise_forward_context() is None:
            for place, layer in enumerate(layers):
                if layer in tables.lookups:
                    tables.lookups[layer].prefetch(hashes[:, place])
        return hashes

    return forward


def scheduled(tables: Tables, layers: Sequence[int]) -> Callable[..., Any]:
    """Around the scheduler's step: once a chunk is under way, the rows of the prompt's next one are read."""
    workers: dict[int, LookAhead] = {}

    def run_batch(original: Callable[..., Any], self: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        result = original(self, batch, *rest, **named)
        req = batch.chunked_req
        if (
            req is not None
            and tables.hasher is not None
            and batch.forward_mode.is_extend_without_speculative()
        ):
            ids = next_ids(tables.hasher, req.full_untruncated_fill_ids, req.prefix_len, req.extend_end)
            for place, layer in enumerate(layers):
                if not len(ids) or layer not in tables.readers:
                    continue
                if layer not in workers:
                    workers[layer] = LookAhead(tables.readers[layer])
                workers[layer].begin(ids[:, place].reshape(-1))
        return result

    return run_batch


def next_ids(hasher: Any, tokens: Sequence[int], start: int, end: int) -> NDArray[np.int64]:
    """Row ids int64[T, layers, columns] of the chunk behind [start, end) of a prompt, which is as long or the rest."""
    import torch

    last = min(end + (end - start), len(tokens))
    if last <= end:
        return np.empty((0, 0, 0), dtype=np.int64)
    words, blocked = windows(
        np.asarray(tokens[max(0, end - hasher.max_ngram_size) : last], np.int64), end, last, hasher
    )
    ids, _ = hasher.hash_windows(torch.from_numpy(words), torch.from_numpy(blocked))
    made: NDArray[np.int64] = ids.numpy()
    return made


def windows(
    tail: NDArray[np.int64], first: int, last: int, hasher: Any
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Of tokens first … last: column s of the first array is the s-th predecessor, of the second whether the prompt
    begins behind it. `tail` ends with token last − 1 and begins before token `first` where there is one.
    """
    places = np.arange(first, last)[:, None] - np.arange(hasher.max_ngram_size)[None, :]
    offset = last - len(tail)
    return tail[np.maximum(places - offset, 0)], places < 0

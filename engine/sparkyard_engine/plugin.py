"""The SGLang plug-in (entry point ``sglang.srt.plugins``): head padding, Engram from disk, and the proof of
both.

SGLang logs a failing plug-in and serves without it, and so does a hook whose target is gone. Here both end
the process: before SGLang has read its arguments where that is possible, else while the weights load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from sparkyard_engine import ahead, drift, hooks, padding, rankspec
from sparkyard_engine.asked import Asked, RefusedError, asked
from sparkyard_engine.drift import Symbol
from sparkyard_engine.embedding import Tables, disk_embedding
from sparkyard_engine.engram.errors import EngramError
from sparkyard_engine.life import Active, prove
from sparkyard_engine.source import choose, is_draft

EMBEDDING = "sglang.srt.layers.engram.EngramEmbedding"
UNALIGNED = "sglang.srt.configs.update_config.adjust_config_with_unaligned_cpu_tp"
CPU_RULE = "sglang.srt.layers.linear._is_cpu"
# Where each architecture loads its weights, and with which parameters.
LOADERS = {
    "LabV41ForCausalLM": Symbol(
        "sparkyard_engine.lab.models.lab_v41.LabV41ForCausalLM.load_weights", ("self", "weights")
    ),
    "DeepseekV41ForCausalLM": Symbol(
        "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM.load_weights", ("self", "weights", "is_nextn")
    ),
}
DRAFT_LOADER = Symbol(
    "sglang.srt.models.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.load_weights", ("self", "weights")
)
ENGRAM_SYMBOLS = (
    Symbol(f"{EMBEDDING}.__init__", ("self", "num_embeddings", "dim", "layer_id", "column_bounds")),
    Symbol(f"{EMBEDDING}.forward", ("self", "indices", "forward_batch", "cp_all_tokens")),
    Symbol(f"{EMBEDDING}.finish_load", ("self", "label")),
    Symbol(f"{EMBEDDING}.new_rows", ("self", "indices")),
    Symbol(
        "sglang.srt.layers.engram.Engram.embed_rows", ("self", "hash_ids", "forward_batch", "cp_all_tokens")
    ),
    Symbol("sglang.srt.distributed.tensor_model_parallel_all_reduce", ("input_",)),
)
CPU_SYMBOLS = (Symbol(UNALIGNED, ("model_config", "load_config", "tp_size")), Symbol(CPU_RULE))
COMMON_SYMBOLS = (
    Symbol(
        "sglang.srt.plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type", "source")
    ),
    Symbol("sglang.srt.runtime_context.get_parallel", ()),
)

active: Active | None = None
"""What the plug-in does in this process; None when no rank spec was given. The lab's model looks at it."""


def register() -> None:
    """Called by SGLang once in every process. Ends the process when the rank spec cannot be met."""
    global active  # noqa: PLW0603 - SGLang calls this without arguments and drops what it returns
    try:
        spec = rankspec.from_environment()
        if spec is not None:
            active = install(asked(spec))
    except (rankspec.RankSpecError, RefusedError, EngramError, padding.PaddingError, OSError) as error:
        # Not an Exception: SGLang would log that and serve without the plug-in.
        raise SystemExit(f"sparkyard plug-in: {error}") from error


def symbols(want: Asked) -> tuple[Symbol, ...]:
    """Everything that the plug-in takes hold of for this rank."""
    if want.architecture not in LOADERS:
        raise RefusedError(
            f"architecture {want.architecture}: this plug-in knows {', '.join(LOADERS)}; its padding and tables "
            "would not be applied"
        )
    disk = ENGRAM_SYMBOLS if want.disk is not None else ()
    aside = ahead.SYMBOLS if want.prefetches or want.looks_ahead else ()
    cpu = CPU_SYMBOLS if want.device == "cpu" else ()
    return (
        *COMMON_SYMBOLS,
        *disk,
        *aside,
        *cpu,
        *hooks.symbols(hooks.wanted(want.settings)),
        *_loaders(want),
    )


def _loaders(want: Asked) -> tuple[Symbol, ...]:
    """Where weights are loaded: the main model, and the draft when there is one."""
    draft = want.speculative and want.architecture == "DeepseekV41ForCausalLM"
    return (LOADERS[want.architecture], DRAFT_LOADER) if draft else (LOADERS[want.architecture],)


def install(want: Asked) -> Active:
    """Checks every symbol, then registers the hooks. SGLang applies them when all plug-ins have
    registered."""
    taken = symbols(want)
    if problems := drift.problems(taken):
        raise RefusedError(f"this SGLang is not the one the plug-in was made for: {'; '.join(problems)}")
    from sglang.srt.layers import engram, linear
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    tables, names = None, []
    if want.disk is not None:
        tables = Tables(want.disk)
        HookRegistry.register(EMBEDDING, disk_embedding(engram.EngramEmbedding, tables), HookType.REPLACE)
        names.append(EMBEDDING)
        if want.prefetches or want.looks_ahead:
            around = ahead.hashed(tables, want.engram_layers, prefetch=want.prefetches)
            HookRegistry.register(ahead.HASHER.path, around, HookType.AROUND)
            names.append(ahead.HASHER.path)
        if want.looks_ahead:
            around = ahead.scheduled(tables, want.engram_layers)
            HookRegistry.register(ahead.RUN_BATCH.path, around, HookType.AROUND)
            names.append(ahead.RUN_BATCH.path)
    if want.device == "cpu":
        # On a CPU SGLang rewrites head counts that the ranks do not divide (12 → 36 here) …
        HookRegistry.register(UNALIGNED, _unchanged, HookType.REPLACE)
        # … and fills short weight shards with zeros, so that a missing pad would go unseen. The rule of the
        # GPU holds.
        linear._is_cpu = False  # noqa: SLF001 - a module constant; SGLang offers no switch
        names += [UNALIGNED, CPU_RULE]
    for each in hooks.wanted(want.settings):
        HookRegistry.register(each.hook.symbol.path, each.hook.make(each.value), HookType.AROUND)
        names.append(each.hook.symbol.path)
    loaders = _loaders(want)
    names += [loader.path for loader in loaders]
    made = Active(want, tables, tuple(names), choose(want.plan, want.slices))
    HookRegistry.register(loaders[0].path, _around(made), HookType.AROUND)
    if len(loaders) > 1:
        HookRegistry.register(loaders[1].path, _around_draft(made), HookType.AROUND)
    return made


def _unchanged(model_config: Any, load_config: Any, tp_size: int) -> Any:
    del load_config, tp_size
    return model_config


def _around(made: Active) -> Callable[..., Any]:
    def load_weights(
        original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, Any]], *rest: Any, **named: Any
    ) -> Any:
        """Pads by checkpoint name before SGLang slices, then proves what this rank has become."""
        made.check_model(model)
        sys.stdout.write(f"sparkyard: weights from {made.source.name}: {made.source.note}\n")
        result = original(model, made.source.stream(weights, made.loads), *rest, **named)
        prove(made, _count(made, made.want.to_pad))
        sys.stdout.flush()
        return result

    return load_weights


def _around_draft(made: Active) -> Callable[..., Any]:
    def load_weights(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        """The draft's own tensors, padded like the main model's."""
        made.check_shapes(model.config)
        result = original(model, made.source.stream(weights, is_draft))
        _count(made, made.want.draft_to_pad)
        return result

    return load_weights


def _count(made: Active, expected: int) -> int:
    """Tensors in padded shapes. Raises RefusedError unless it is every one that has to be."""
    found = sum(made.source.padded.values())
    if found != expected:
        raise RefusedError(f"{found} tensors were padded, {expected} must be: {made.source.padded}")
    return found

"""A second SGLang plug-in, for tests only: falsifies one thing in a running rank while a file asks for it.

The file ``fault.json`` lies beside the folders of the ranks. All ranks look at it before every step; what it
changes is put back when it is gone, so that one boot serves several tests.
"""

import json
import os
from pathlib import Path
from typing import Any

SPEC = json.loads(Path(os.environ["SPARKYARD_RANK_SPEC"]).read_text(encoding="utf-8"))
RANK: int = SPEC["rank"]
FILE = Path(SPEC["directory"]).parent / "fault.json"


def asked() -> dict[str, Any]:
    """The fault that is asked for now; empty: none."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def register() -> None:
    """Wraps the model's step, the hasher and the reader."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    model = "sparkyard_engine.lab.models.lab_v41.LabV41ForCausalLM.forward"
    HookRegistry.register(model, around_model, HookType.AROUND)
    HookRegistry.register("sglang.srt.layers.engram.EngramHasher.forward", around_hasher, HookType.AROUND)
    HookRegistry.register(
        "sparkyard_engine.engram.reader.Reader.read_distinct", around_reader, HookType.AROUND
    )


def around_model(original: Any, model: Any, *args: Any, **named: Any) -> Any:
    """``padding``: in one layer of one rank the real and the padded group of ``wo_a`` have changed places."""
    fault = asked()
    if fault.get("fault") != "padding" or fault["rank"] != RANK:
        return original(model, *args, **named)
    weight = model.layers[fault["layer"]].attn.wo_a.weight.data
    right = weight.clone()
    weight.copy_(right.roll(len(right) // 2, 0))
    try:
        return original(model, *args, **named)
    finally:
        weight.copy_(right)


def around_hasher(original: Any, hasher: Any, input_ids: Any, forward_batch: Any) -> Any:
    """``look-back``: a request with this many cached tokens does not see the tokens before the border."""
    fault = asked()
    prefixes = forward_batch.extend_prefix_lens_cpu
    if (
        fault.get("fault") == "look-back"
        and forward_batch.engram_history is not None
        and prefixes is not None
    ):
        for place, prefix in enumerate(prefixes):
            if prefix == fault["cached"]:
                forward_batch.engram_history[place] = 0
    return original(hasher, input_ids, forward_batch)


def around_reader(original: Any, reader: Any, ids: Any, weight: Any, scale: Any, place: Any) -> Any:
    """``ownership``: one rank takes one row of its own for another's."""
    distinct = original(reader, ids, weight, scale, place)
    fault = asked()
    if fault.get("fault") == "ownership" and (fault["rank"], fault["layer"]) == (RANK, reader.header.layer):
        place[ids == fault["row"]] = -1
    return distinct

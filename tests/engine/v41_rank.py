"""One rank of the real `DeepseekV4ForCausalLM` on the CPU: loads through SGLang's own model runner, saves its shards.

    SPARKYARD_RANK_SPEC=SPEC python tests/engine/v41_rank.py OUT

SGLang 0.5.23 has no CPU path for this model. Four shims are needed to construct and load it, and no others: the plug-in
sets two where the device is a CPU (head counts are not rewritten, short shards are not filled), the other two are here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FACTORY = "sglang.srt.layers.rotary_embedding.factory"
ROPE_ARGUMENTS = 8  # get_rope_cpu takes the device besides


def shims() -> None:
    """The other two: rotations by the general class, and no compilation of CUDA kernels."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def rope(*arguments: Any, **named: Any) -> Any:
        from sglang.srt.layers.rotary_embedding.factory import get_rope

        named.pop("device", None)
        return get_rope(*arguments[:ROPE_ARGUMENTS], **named)

    HookRegistry.register(f"{FACTORY}.get_rope_cpu", rope, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM._prewarm_mhc_kernels",
        lambda _: None,
        HookType.REPLACE,
    )


def main(out: Path) -> None:
    """Load the model of the rank spec and save what this rank holds."""
    from sglang.srt.plugins import load_plugins

    shims()
    load_plugins()
    import torch
    from sglang.benchmark import one_batch as sg
    from sglang.srt.server_args import PortArgs, prepare_server_args

    spec = json.loads(Path(os.environ["SPARKYARD_RANK_SPEC"]).read_text("utf-8"))
    rank = spec["rank"]
    args = prepare_server_args(spec["argv"][3:])
    ports = PortArgs.init_new(args)
    sg.publish(
        args,
        role="scheduler",
        ranks=sg.SpawnRanks(world_rank=sg.spawn_world_rank(args, tp_rank=rank, pp_rank=0), gpu_id=0),
    )
    sg._init_process_global_configs()
    config = sg.ModelConfig.from_server_args(args)
    sg.bootstrap.init_parallel_runtime(
        server_args=args, device=sg.get_device().device, dist_port=ports.nccl_port
    )
    sg.bootstrap.init_layer_runtime(model_config=config)
    runner = sg.ModelRunner(
        model_config=config, mem_fraction_static=0.2, gpu_id=0, nccl_port=ports.nccl_port, server_args=args
    )
    named = runner.model.named_parameters(remove_duplicate=False)  # a layer also holds the next one
    held = {name: parameter.data.clone() for name, parameter in named if "._next_layer." not in name}
    torch.save({"class": type(runner.model).__name__, "parameters": held}, out)
    sg.dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # SGLang's threads do not end by themselves


if __name__ == "__main__":
    main(Path(sys.argv[1]))

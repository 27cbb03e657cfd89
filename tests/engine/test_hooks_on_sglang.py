"""The hooks on SGLang's own classes."""

from __future__ import annotations

import pytest
import torch

from sparkyard_engine import drift, hooks, plugin
from sparkyard_engine.hooks import loops, scales, thinking

EVERYTHING = {hook.setting: 1 for hook in hooks.HOOKS}


def test_every_symbol_is_there_with_its_parameters() -> None:
    taken = (*hooks.symbols(hooks.wanted(EVERYTHING)), plugin.DRAFT_LOADER, *plugin.LOADERS.values())
    assert drift.problems(taken) == []


def test_a_real_request_ends_when_it_repeats_itself() -> None:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    def answered(ignore_eos: bool) -> Req:
        asked = SamplingParams(max_new_tokens=4000, ignore_eos=ignore_eos)
        asked.normalize(None)
        req = Req("r", "", [1, 2], asked, eos_token_ids=set(), vocab_size=1000)
        ended = loops.around(True)
        for token in list(range(100)) + [7] * 200:
            req.output_ids.append(token)
            ended(Req.update_finish_state, req, 1)
            if req.finished():
                break
        return req

    req = answered(ignore_eos=False)
    assert req.finished_reason.to_json() == {"type": "stop", "matched": "repetition"}
    assert 164 <= len(req.output_ids) <= 180
    assert req.finished_len == len(req.output_ids)
    assert not answered(ignore_eos=True).finished()


def test_scales_of_empty_blocks_are_repaired_and_damage_is_not() -> None:
    from sglang.srt.layers.quantization.fp8_utils import block_fp8_scale_to_mxfp8_e8m0

    weight = torch.zeros(96, 64)
    weight[:32, :32] = 1.0
    fp8 = weight.to(torch.float8_e4m3fn)
    scale = torch.full((3, 2), 2.0**-5)
    scale[1, 0], scale[1, 1], scale[2, 1] = 1e-42, 0.0, float("nan")
    with pytest.raises(ValueError, match="not positive powers of two"):
        block_fp8_scale_to_mxfp8_e8m0(scale, (96, 64), [32, 32])
    assert scales.repair(fp8, scale, (32, 32)) == 3
    codes = block_fp8_scale_to_mxfp8_e8m0(scale, (96, 64), [32, 32])
    assert codes.shape == (96, 2)
    assert int(codes[40, 0]) == 127
    scale[0, 0] = 0.3  # over real weights
    assert scales.repair(fp8, scale, (32, 32)) == 0
    assert float(scale[0, 0]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False, "thinking": False}),
        ({"enable_thinking": True, "thinking": False}, {"enable_thinking": True, "thinking": False}),
        (None, None),
    ],
)
def test_the_alias_of_thinking(given: dict[str, bool] | None, expected: dict[str, bool] | None) -> None:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "x"}], chat_template_kwargs=given
    )
    convert = thinking.around(True)
    assert convert(lambda _self, request, _raw: request.chat_template_kwargs, None, request) == expected

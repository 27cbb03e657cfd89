"""The memory and disk ledgers on the published geometry, and on a sparse checkpoint of the full size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.model.profile import Profile
from orchestrator.plan import disk
from orchestrator.plan.geometry import TENSORS, TOTAL_BYTES, cited
from orchestrator.plan.judge import (
    Contents,
    compare_with_published,
    document,
    judge,
    published_contents,
    text,
)
from orchestrator.plan.ledger import GB, GIB, Ledger, Place, transient_bytes
from orchestrator.plan.tensors import Kind, Shape, Tensor, kinds, parse_rules, weights
from orchestrator.shards import read_checkpoint, read_header
from tests.v41_checkpoint import write_sparse

RULES = parse_rules(
    json.loads(
        (Path(__file__).parents[2] / "engine/sparkyard_engine/data/deepseek-v4.1.json").read_text("utf-8")
    )
)
PADDED = {"num_attention_heads": 96, "o_groups": 12}
CONTENTS = published_contents()


def profile(
    tp: int,
    *,
    chunk: int = 768,
    context: int = 262_144,
    pool: int = 750_000,
    requests: int = 4,
    fraction: float = 0.95,
    padding: dict[str, int] | None = None,
    engram: str = "disk",
    more: Sequence[dict[str, Any]] = (),
) -> Profile:
    flags = {
        "--chunked-prefill-size": chunk,
        "--context-length": context,
        "--max-total-tokens": pool,
        "--max-running-requests": requests,
        "--mem-fraction-static": fraction,
    }
    variables = {"NCCL_BUFFSIZE": 1 << 20, "NCCL_LL128_BUFFSIZE": 262_080, "NCCL_MAX_NCHANNELS": 8}
    deadlines = ("join_s", "ready_s", "drain_s", "memory_s", "pack_s", "canary_s", "smoke_s")
    return Profile.model_validate(
        {
            "schema": "sparkyard/profile/v1",
            "name": f"tp{tp}",
            "evidence": "none",
            "model": {"name": "m", "served_name": "m", "revision": "r"},
            "engine": {"name": "sglang", "version": "0.5.23", "runtime": "docker"},
            "parallel": {"tp": tp, "padding": padding},
            "engram": {"mode": engram},
            "memory": {"floor_bytes": 1_500_000_000},
            "ports": {"api": 8000, "gate": 8001, "rendezvous": 8002},
            "deadlines": dict.fromkeys(deadlines, 60.0),
            "settings": [
                *({"flag": name, "value": value, "why": "w"} for name, value in flags.items()),
                *({"env": name, "value": value, "why": "w"} for name, value in variables.items()),
                *more,
            ],
        }
    )


def judged(asked: Profile, contents: Contents = CONTENTS) -> Ledger:
    places = [Place(f"spark{rank}") for rank in range(asked.parallel.tp)]
    return judge(asked, places, contents, RULES)


def test_the_published_geometry_is_complete_but_for_the_vision_part() -> None:
    tensors = [each.tensor for each in cited()]
    experts = [tensor for tensor in tensors if ".ffn.experts." in tensor.name]
    assert sum(tensor.name.startswith("layers.") for tensor in experts) == 92_160
    assert sum(tensor.name.startswith("mtp.") for tensor in experts) == 2_304
    assert round(sum(tensor.bytes for tensor in experts) / GIB, 2) == 275.67
    unlisted = TOTAL_BYTES - sum(tensor.bytes for tensor in tensors)
    assert round(unlisted / GIB, 2) == 0.90  # the published size of vision and aligner
    assert 0 < TENSORS - len(tensors) < 400
    assert all(each.source for each in cited())
    assert not weights(CONTENTS.tensors, RULES, Shape(8, 12, 3), tables_in_memory=False).unknown


def test_two_ranks_do_not_fit_three_are_tight_four_fit() -> None:
    two, three, four = (
        judged(profile(2)),
        judged(profile(3, padding=PADDED)),
        judged(profile(4, chunk=512, context=1_048_576, pool=4_000_000, requests=8, fraction=0.8)),
    )
    assert [two.verdict, three.verdict, four.verdict] == ["does not fit", "tight", "fits"]
    assert three.tightest.rank == 0
    assert 0 < three.tightest.margin_bytes < three.tightest.uncertainty_bytes
    assert three.ranks[1].margin_bytes > three.ranks[0].margin_bytes
    assert any("only more ranks help" in how for how in two.remedies)


def test_a_chunk_that_a_full_prompt_cannot_survive_is_refused_with_its_arithmetic() -> None:
    ledger = judged(profile(3, chunk=2048, padding=PADDED))
    assert ledger.verdict == "does not fit"
    assert "spark0 (rank 0): chunk 2048 x context 262144 x 14 B = 7.00 GiB" in ledger.refusals[0]
    chunk = int(ledger.remedies[0].split()[1])
    assert judged(profile(3, chunk=chunk, padding=PADDED)).verdict == "tight"
    assert judged(profile(3, chunk=chunk + 128, padding=PADDED)).verdict == "does not fit"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (profile(3), "tp 3: layers.0.attn.wq_b.weight: axis 0 has 32768 entries, not divisible by 3 ranks"),
        (profile(5, padding={"num_attention_heads": 80, "o_groups": 10}), "not divisible by 5 ranks"),
        (profile(3, padding=PADDED, engram="memory"), "the tables take 62.94 GiB a rank"),
        (profile(3, padding=PADDED, pool=9_000_000), "a pool of 9000000 tokens takes"),
        (
            profile(
                3,
                padding=PADDED,
                more=[
                    {
                        "env": "PYTORCH_CUDA_ALLOC_CONF",
                        "value": "expandable_segments:True",
                        "why": "w",
                    }
                ],
            ),
            "expandable_segments:True: gave NaN",
        ),
        (
            profile(
                3,
                padding=PADDED,
                more=[{"env": "NCCL_LL128_BUFFSIZE", "value": 262_144, "why": "w"}],
            ),
            "262144 is not a multiple of 120",
        ),
    ],
)
def test_unsafe_combinations_are_refused(asked: Profile, why: str) -> None:
    ledger = judged(asked)
    assert any(why in refusal for refusal in ledger.refusals), ledger.refusals
    assert ledger.verdict == "does not fit"


def test_the_padding_that_would_serve_is_named() -> None:
    assert judged(profile(3)).remedies[0] == "parallel.padding: {num_attention_heads: 96, o_groups: 12}"


def test_differences_to_the_published_weights_are_itemised() -> None:
    for tp, published_gib in ((2, 145), (3, 101), (4, 77)):
        asked = profile(tp, padding=PADDED if tp == 3 else None)
        found = compare_with_published(asked, judged(asked))
        assert found is not None
        assert found["published_bytes"] == published_gib * GIB
        assert sum(item["bytes"] for item in found["items"]) == found["computed_bytes"]
        beside = sum(item["bytes"] for item in found["may_be_counted_as_weights"])
        assert found["unexplained_bytes"] == found["published_bytes"] - found["computed_bytes"] - beside
        assert abs(found["unexplained_bytes"]) < 4 * GIB


def test_what_a_boot_measured_replaces_the_estimate() -> None:
    asked, name = profile(3, padding=PADDED), "CUDA context, kernels and engine processes"
    places = [Place(f"spark{rank}", used_bytes=5 * GIB) for rank in range(3)]
    before = judge(asked, places, CONTENTS, RULES)
    after = judge(asked, places, CONTENTS, RULES, {0: {name: 3 * GIB}})
    assert before.ranks[0].verdict == "tight"
    assert after.ranks[0].verdict == "fits"
    assert after.ranks[1] == before.ranks[1]


def test_json_and_text_name_every_line() -> None:
    asked = profile(3, padding=PADDED)
    ledger = judged(asked)
    shown = document(asked, ledger, CONTENTS)
    assert shown["verdict"] == "tight"
    for rank in shown["ranks"]:
        assert rank["margin_bytes"] == rank["total_bytes"] - sum(line["bytes"] for line in rank["lines"])
        assert all(line["source"] for line in rank["lines"])
    assert json.loads(json.dumps(shown)) == shown
    assert sum(line.startswith("  ") for line in text(ledger)) == len(ledger.ranks[0].lines) + 3


@given(chunk=st.integers(1, 4096), context=st.integers(1, 1_048_576), step=st.integers(1, 4096))
@settings(max_examples=60, derandomize=True)
def test_the_transient_never_falls_with_chunk_or_prefix(chunk: int, context: int, step: int) -> None:
    assert transient_bytes(chunk + step, context) > transient_bytes(chunk, context)
    assert transient_bytes(chunk, context + step) > transient_bytes(chunk, context)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v41")
    write_sparse(folder)
    return folder


def test_a_checkpoint_of_full_size_gives_the_same_ledger(sparse: Path) -> None:
    blocks = sum(path.stat().st_blocks for path in sparse.iterdir()) * 512
    assert sum(path.stat().st_size for path in sparse.iterdir()) > 500 * GB
    assert blocks < 64 << 20
    read = read_checkpoint(sparse)
    assert (len(read.shards), read.total_bytes) == (47, TOTAL_BYTES)  # the vision shard cannot be cited
    contents = Contents(kinds(read.tensors), read.total_bytes, "headers")
    asked = profile(3, padding=PADDED)
    assert judged(asked, contents) == judged(asked)


def test_tensors_without_a_rule_are_a_visible_line() -> None:
    strange = Tensor("surprise.weight", "BF16", (1 << 20, 512))
    contents = replace(
        CONTENTS, tensors=(*CONTENTS.tensors, Kind(strange, 1)), total_bytes=TOTAL_BYTES + strange.bytes
    )
    asked = profile(3, padding=PADDED)
    more = judged(asked).ranks[0].margin_bytes - judged(asked, contents).ranks[0].margin_bytes
    assert more == strange.bytes
    unknown = next(line for line in judged(asked, contents).ranks[0].lines if "unknown" in line.name)
    assert "1 tensors without a rule" in unknown.source


@pytest.mark.parametrize("damage", ["short", "length", "json", "dtype"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    header = {"a": {"dtype": "F99" if damage == "dtype" else "F32", "shape": [4], "data_offsets": [0, 16]}}
    raw = b"{" if damage == "json" else json.dumps(header).encode()
    length = 1 << 60 if damage == "length" else len(raw)
    path = tmp_path / "model-00001-of-00001.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + raw + bytes(15 if damage == "short" else 16))
    with pytest.raises(ConfigError, match="model-00001-of-00001"):
        read_header(path)


def room(free_gb: int, *, head: bool, **more: Any) -> disk.Room:
    volume = disk.Volume("/srv", free_gb * GB, 1)
    return disk.Room("head" if head else "worker", volume, head, head, **more)


@pytest.mark.parametrize(
    ("capacity_gb", "verdict"), [(1000, "fits"), (4000, "fits"), (700, "does not fit"), (500, "does not fit")]
)
def test_disks_of_one_and_four_terabytes(capacity_gb: int, verdict: str) -> None:
    rooms = [room(capacity_gb - 80, head=True), room(capacity_gb - 80, head=False)]
    head, worker = disk.disk_ledger(profile(3, padding=PADDED), rooms, CONTENTS, RULES)
    assert head.verdict == verdict
    assert worker.verdict == "fits"
    assert {file.name: file.bytes for file in worker.files}["packed Engram tables"] // GIB == 62


def test_the_peak_of_a_disk_is_not_the_sum_and_held_files_need_no_room() -> None:
    steps = (disk.Stored("a", 10, 50), disk.Stored("b", 30, 0), disk.Stored("c", 5, 1))
    assert disk.NodeDisk("n", 100, steps).peak_bytes == 60
    held = (("checkpoint", TOTAL_BYTES), ("engine image", disk.IMAGE_BYTES), ("build cache", 99 * GB))
    (there,) = disk.disk_ledger(
        profile(3, padding=PADDED), [room(1000, head=True, held_bytes=held)], CONTENTS, RULES
    )
    sizes = {file.name: file.bytes + file.temporary_bytes for file in there.files}
    assert sizes["checkpoint"] == sizes["engine image"] == sizes["build cache"] == 0
    assert disk.as_json([there])["verdict"] == "fits"


def test_files_on_other_filesystems_need_no_room_below_the_root() -> None:
    elsewhere = {
        "checkpoint": disk.Volume("/models", 400 * GB, 2),
        "engine image": disk.Volume("/var/lib/docker", 900 * GB, 1),
    }
    asked = profile(3, padding=PADDED)
    models, root = disk.disk_ledger(asked, [room(400, head=True, elsewhere=elsewhere)], CONTENTS, RULES)
    assert [file.name for file in models.files] == ["checkpoint"]
    assert (root.path, root.verdict) == ("/srv", "fits")  # docker's folder has the root's device number
    assert "engine image" in {file.name for file in root.files}
    assert (models.path, models.verdict) == ("/models", "does not fit")


def test_without_a_look_only_the_need_is_known() -> None:
    rooms = [disk.Room("head", disk.Volume("/srv", None), True)]
    (head,) = disk.disk_ledger(profile(3, padding=PADDED), rooms, CONTENTS, RULES)
    assert head.peak_bytes > 600 * GB
    shown = disk.as_json([head])
    assert (shown["verdict"], shown["nodes"][0]["margin_bytes"]) == ("unknown", None)

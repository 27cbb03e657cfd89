"""Slices of a small checkpoint in V4.1's names: laid out again they are what the padded checkpoint gives the rank."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from sparkyard_engine import padding
from sparkyard_engine.slices import pack
from sparkyard_engine.slices.cut import cut
from sparkyard_engine.slices.load import stream
from sparkyard_engine.slices.manifest import Identity, Manifest, SliceError, load
from tests.engine.v41_small import Dims, tensors, write

TP = 3
PADDED = {"num_attention_heads": 6, "o_groups": 3}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("checkpoint")
    made = tensors(Dims(), fp8=True)
    made["layers.1.engram.embed.weight"] = torch.zeros(640, 256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    made["surprise.weight"] = torch.randn(7, 5)
    write(folder, Dims(), made, {})
    return folder, made


def identity(folder: Path, rank: int, revision: str = "r1") -> Identity:
    digest = hashlib.sha256((folder / pack.INDEX).read_bytes()).hexdigest()
    return Identity(revision, digest, TP, rank, PADDED)


def packed(folder: Path, output: Path, rank: int) -> Manifest:
    words = ["--checkpoint", str(folder), "--revision", "r1", "--tp", str(TP), "--rank", str(rank)]
    words += ["--padded-heads", "6", "--padded-groups", "3", "--output", str(output)]
    words += ["--status", str(output.with_suffix(".status"))]
    assert pack.main(words) == 0
    assert json.loads(output.with_suffix(".status").read_text())["state"] == "done"
    return load(output, identity(folder, rank))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_every_rank_finds_its_part_of_the_padded_checkpoint(
    checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    folder, made = checkpoint
    plan = pack.plan_of(folder, TP, PADDED)
    stored = 0
    for rank in range(TP):
        manifest = packed(folder, tmp_path / f"rank{rank}", rank)
        stored += manifest.bytes
        found = dict(stream(tmp_path / f"rank{rank}", manifest, lambda _: True))
        assert found.keys() == {name for name in made if ".engram.embed." not in name}
        for name, tensor in found.items():
            rule = plan.pads(name)
            whole = padding.apply(name, made[name], rule, plan.placement) if rule else made[name]
            assert tensor.dtype == whole.dtype
            assert tensor.shape == whole.shape
            part = cut(padding.rule_of(plan.rules, name), made[name].shape, plan.placement, rank)
            assert part is not None
            if part.axis is None:
                assert torch.equal(raw(tensor), raw(whole)), name
                continue
            first, last = part.filled
            ours, theirs = (
                (each.view(torch.uint8) if each.element_size() == 1 else each).narrow(
                    part.axis, first, last - first
                )
                for each in (tensor, whole)
            )
            assert torch.equal(raw(ours), raw(theirs)), name
    split = sum(t.nbytes for n, t in made.items() if ".experts." in n)
    whole = sum(t.nbytes for n, t in made.items() if ".engram.embed." not in n)
    assert stored <= 3 * whole - 2 * split


def test_packing_again_is_free_and_another_store_is_not_overwritten(
    checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = checkpoint
    manifest = packed(folder, tmp_path / "s", 0)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").iterdir()}
    assert packed(folder, tmp_path / "s", 0) == manifest
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").iterdir()}
    words = ["--checkpoint", str(folder), "--revision", "r1", "--tp", "3", "--rank", "1"]
    words += ["--padded-heads", "6", "--padded-groups", "3", "--output", str(tmp_path / "s")]
    assert pack.main(words) == 1
    assert "holds another store" in capsys.readouterr().err


def test_a_stale_foreign_or_damaged_slice_is_refused_by_name(
    checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    folder, _ = checkpoint
    store = tmp_path / "s"
    manifest = packed(folder, store, 0)
    with pytest.raises(SliceError, match=r"rank: wanted 1, found 0"):
        load(store, identity(folder, 1))
    with pytest.raises(SliceError, match=r"revision: wanted 'r2', found 'r1'"):
        load(store, identity(folder, 0, "r2"))
    with pytest.raises(SliceError, match="no finished slice store"):
        load(tmp_path / "nowhere", identity(folder, 0))
    victim = max(manifest.entries, key=lambda entry: entry.bytes)
    path = store / victim.file
    content = bytearray(path.read_bytes())
    content[victim.offset + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(SliceError, match=f"{victim.name}: the checksum differs"):
        list(stream(store, manifest, lambda _: True))
    path.write_bytes(content[:-1])
    with pytest.raises(
        SliceError, match=rf"{path.name}: {len(content) - 1} B, the manifest says {len(content)}"
    ):
        load(store, identity(folder, 0))


def test_only_wanted_names_are_read(checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    folder, _ = checkpoint
    manifest = packed(folder, tmp_path / "s", 2)
    names = [name for name, _ in stream(tmp_path / "s", manifest, lambda name: name.startswith("mtp."))]
    assert names
    assert all(name.startswith("mtp.") for name in names)

"""The lab's checkpoint: whole, reproducible, and addressed by the same hash as SGLang's own."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab_small import SMALL, TP

from sparkyard_engine import padding
from sparkyard_engine.engram.hashing import Hasher, Layout, compress_tokenizer
from sparkyard_engine.lab.checkpoint import CheckpointError, main, make


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def test_same_seed_same_bytes_other_seed_other_bytes(checkpoint: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again", seed=7, engram_vocab_size=SMALL)
    assert make(tmp_path / "other", seed=8, engram_vocab_size=SMALL)
    first, again, other = digests(checkpoint), digests(tmp_path / "again"), digests(tmp_path / "other")
    assert first == again
    shards = [name for name in first if name.endswith(".safetensors")]
    assert len(shards) == 5
    assert all(first[name] != other[name] for name in shards)


def test_what_is_there_is_kept_and_never_overwritten(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    assert not make(checkpoint, seed=7, engram_vocab_size=SMALL)
    assert before == {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    with pytest.raises(CheckpointError, match="seed"):
        make(checkpoint, seed=9, engram_vocab_size=SMALL)
    (tmp_path / "foreign").mkdir()
    assert main([str(tmp_path / "foreign")]) == 1
    assert "foreign" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


def test_a_torn_checkpoint_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    make(tmp_path / "model", seed=7, engram_vocab_size=SMALL)
    shard = tmp_path / "model" / "model-00004-of-00005.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        make(tmp_path / "model", seed=7, engram_vocab_size=SMALL)


def test_index_names_and_types_are_those_of_the_model(checkpoint: Path) -> None:
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text(encoding="utf-8"))[
        "weight_map"
    ]
    found = {
        name: (shard.name, entry["dtype"], entry["shape"])
        for shard in checkpoint.glob("*.safetensors")
        for name, entry in header(shard).items()
        if name != "__metadata__"
    }
    assert {name: place[0] for name, place in found.items()} == index
    config = config_of(checkpoint)
    for layer, rows in zip(config["engram_layer_ids"], config["engram_num_embeddings"], strict=True):
        prefix = f"layers.{layer}.engram.embed."
        assert found[prefix + "weight"][1:] == ("F8_E4M3", [rows, 256])
        assert found[prefix + "scale"][1:] == ("F8_E8M0", [rows, 8])
        assert index[prefix + "weight"] == index[prefix + "scale"]
        assert all(
            f"layers.{layer}.engram." in name
            for name, shard in index.items()
            if shard == index[prefix + "scale"]
        )
    known = padding.rules()
    unknown = [name for name in index if padding.rule_of(known, name) is None and ".ffn.w" not in name]
    assert unknown == []


def test_the_shape_problem_is_there_and_padding_solves_it(checkpoint: Path) -> None:
    config = config_of(checkpoint)
    heads, groups = config["num_attention_heads"], config["o_groups"]
    assert heads % TP
    assert groups % TP
    placement = padding.place(heads=heads, groups=groups, padded_heads=12, padded_groups=6, tp=TP)
    assert placement.is_padded


def test_row_ids_equal_those_of_sglang(checkpoint: Path) -> None:
    from sglang.srt.layers.engram import (
        EngramLayout,
        build_compressed_token_map,
        compute_engram_hash_ids,
        compute_hash_multipliers,
    )
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    theirs = EngramLayout.from_config(config)
    token_map, size = build_compressed_token_map(tokenizer)
    assert size == config.engram_compressed_vocab_size < len(tokenizer)

    ours = Layout.from_config(config_of(checkpoint))
    assert ours.table_rows == tuple(config.engram_num_embeddings)
    hasher = Hasher.build(ours, compress_tokenizer(tokenizer, size), config.engram_pad_token_id, size)
    tokens = np.random.default_rng(3).integers(3, len(tokenizer), 500)
    windows, blocked = hasher.windows(tokens)
    flat = [[prime for sizes in layer for prime in sizes] for layer in theirs.primes]
    expected = compute_engram_hash_ids(
        torch.from_numpy(windows),
        torch.from_numpy(blocked),
        token_map[config.engram_pad_token_id],
        torch.tensor(token_map),
        compute_hash_multipliers(theirs.layer_ids, theirs.max_ngram_size, size),
        torch.tensor(theirs.primes),
        torch.tensor(np.array([np.cumsum([0, *sizes[:-1]]) for sizes in flat])),
    )
    assert np.array_equal(hasher.row_ids(windows, blocked), expected.numpy())

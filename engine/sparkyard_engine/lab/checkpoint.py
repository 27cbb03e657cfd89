"""The lab's checkpoint, generated from a seed: ``python -m sparkyard_engine.lab.checkpoint OUT --seed 7``.

Real in it: the shard layout with its index, the tensor names, the Engram tables' dtypes and layout, the hash
that addresses them, a BPE tokenizer. Small in it: everything else. Its attention has the shape problem of
V4.1 (heads and output groups that three ranks do not divide). The same seed gives the same bytes; the folder
appears whole or not at all.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparkyard_engine.engram.hashing import (
    SCALE_BYTES,
    WEIGHT_BYTES,
    Layout,
    compress_tokens,
    tokenizer_normaliser,
)
from sparkyard_engine.files import read_json
from sparkyard_engine.lab.corpus import sentences

SCHEMA = "sparkyard/lab-checkpoint/v1"
RECIPE = 1  # raise it whenever other bytes come out for the same seed
RECORD = "lab.json"
RECORD_LIMIT_BYTES = 1 << 20
ENGRAM_VOCAB_SIZE = 19_700  # 48 primes from here on: 957,000 rows of 264 B, 253 MB in the two tables
TOKENS = 1024
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SHAPE: dict[str, Any] = {
    "architectures": ["LabV41ForCausalLM"],
    # A known type whose config class keeps every extra key. `deepseek_v41` would be turned into the CUDA-only
    # class.
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 384,  # a multiple of 96: SGLang rounds it up to 32 × ranks on a CPU
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 96,
    "o_lora_rank": 32,
    "o_groups": 4,
    "hc_mult": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "engram_layer_ids": [1, 3],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": WEIGHT_BYTES,
    "engram_pad_token_id": 2,
}
LOGIT_SPREAD = (
    4.0  # standard deviation of the logits: float32 noise of 1e-5 then hardly ever reaches the top two
)
SCALE_CODES = (120, 121, 122, 123)  # e8m0: 2**-7 … 2**-4


class CheckpointError(Exception):
    """The checkpoint cannot be made here; the text names the folder and what is in the way."""


def make(out: Path, seed: int, engram_vocab_size: int = ENGRAM_VOCAB_SIZE) -> bool:
    """Makes the checkpoint in the folder ``out``; False if the same one is there already.

    Raises CheckpointError if ``out`` holds anything else. Needs 2 s and about 0.6 GB of memory for full-size
    tables.
    """
    identity = {"schema": SCHEMA, "recipe": RECIPE, "seed": seed, "engram_vocab_size": engram_vocab_size}
    if out.exists():
        if _is_whole(out, identity):
            return False
        raise CheckpointError(
            f"{out}: exists and is not the checkpoint of {identity}; remove it or choose another"
        )
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        tokenizer, config = _tokenizer(temporary, seed, engram_vocab_size)
        _write_json(temporary / "config.json", config)
        _write_shards(temporary, _shards(config, tokenizer, seed))
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        _write_json(temporary / RECORD, {**identity, "sizes": sizes})
        for path in temporary.iterdir():
            path.chmod(0o644)  # safetensors writes 600; other nodes read over a share
            _sync(path)
        _sync(temporary)
        temporary.rename(out)
        _sync(out.parent)
    except OSError as error:
        raise CheckpointError(f"{error.filename or out}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _is_whole(out: Path, identity: Mapping[str, Any]) -> bool:
    record = read_json(out / RECORD, RECORD_LIMIT_BYTES)
    if record is None or any(record.get(key) != value for key, value in identity.items()):
        return False
    sizes = record["sizes"]
    return all((out / name).is_file() and (out / name).stat().st_size == size for name, size in sizes.items())


def _tokenizer(folder: Path, seed: int, engram_vocab_size: int) -> tuple[Any, dict[str, Any]]:
    """Trains the tokenizer, writes its files, and completes the model's configuration, which depends on
    it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # counts merged in any order may break ties in any order
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(seed), trainer)
    if tokenizer.get_vocab_size() != TOKENS:
        raise CheckpointError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, {TOKENS} are needed")
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": SHAPE["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", described)
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(TOKENS)]
    raw = [tokenizer.id_to_token(token) for token in range(TOKENS)]
    _, compressed = compress_tokens(texts, raw, tokenizer_normaliser())
    layout = Layout.build(
        layer_ids=SHAPE["engram_layer_ids"],
        max_ngram_size=SHAPE["engram_max_ngram_size"],
        heads=SHAPE["engram_n_heads"],
        vocab_size=engram_vocab_size,
    )
    config = {
        **SHAPE,
        "vocab_size": TOKENS,
        "engram_vocab_size": engram_vocab_size,
        "engram_num_embeddings": list(layout.table_rows),
        "engram_compressed_vocab_size": compressed,
    }
    return tokenizer, config


def _shards(config: Mapping[str, Any], tokenizer: Any, seed: int) -> list[dict[str, Any]]:
    """Tensors by name, a dict a shard. As in V4.1 each Engram layer has a shard of its own, at the end."""
    draw = _Weights(seed)
    hidden = config["hidden_size"]
    head = draw.normal("head.weight", (config["vocab_size"], hidden), LOGIT_SPREAD / hidden**0.5)
    for token in range(config["vocab_size"]):
        if not _printable(tokenizer.decode([token], skip_special_tokens=False)):
            head[token] = 0  # logit 0, never the largest: the lab's answers are nonsense, but text
    layers = range(config["num_hidden_layers"])
    body = [_layer(draw, config, layer) for layer in layers]
    first = {"embed.weight": draw.normal("embed.weight", (config["vocab_size"], hidden), 1.0)}
    last = {"norm.weight": draw.near_one("norm.weight", (hidden,)), "head.weight": head}
    half = len(body) // 2
    shards = [first | _merged(body[:half]), _merged(body[half:]), last]
    tables = zip(config["engram_layer_ids"], config["engram_num_embeddings"], strict=True)
    return shards + [_engram(draw, config, layer, rows) for layer, rows in tables]


def _layer(draw: "_Weights", config: Mapping[str, Any], layer: int) -> dict[str, Any]:
    hidden, heads, groups = config["hidden_size"], config["num_attention_heads"], config["o_groups"]
    width, q_rank, o_rank = config["head_dim"], config["q_lora_rank"], config["o_lora_rank"]
    inner = config["intermediate_size"]
    shapes = {
        "attn.wq_a.weight": (q_rank, hidden),
        "attn.wq_b.weight": (heads * width, q_rank),
        "attn.wkv.weight": (width, hidden),
        "attn.wo_a.weight": (groups * o_rank, heads * width // groups),
        "attn.wo_b.weight": (hidden, groups * o_rank),
        "ffn.w1.weight": (inner, hidden),
        "ffn.w2.weight": (hidden, inner),
        "ffn.w3.weight": (inner, hidden),
    }
    prefix = f"layers.{layer}."
    tensors = {
        prefix + name: draw.normal(prefix + name, shape, shape[1] ** -0.5) for name, shape in shapes.items()
    }
    for name, size in (
        ("attn_norm", hidden),
        ("ffn_norm", hidden),
        ("attn.q_norm", q_rank),
        ("attn.kv_norm", width),
    ):
        full = f"{prefix}{name}.weight"
        tensors[full] = draw.near_one(full, (size,))
    tensors[prefix + "attn.attn_sink"] = draw.normal(prefix + "attn.attn_sink", (heads,), 1.0).float()
    return tensors


def _engram(draw: "_Weights", config: Mapping[str, Any], layer: int, rows: int) -> dict[str, Any]:
    hidden, copies = config["hidden_size"], config["hc_mult"]
    prefix = f"layers.{layer}.engram."
    columns = (config["engram_max_ngram_size"] - 1) * config["engram_n_heads"]
    fan_in = columns * config["engram_head_dim"]
    # Rows are about 2**-5 in size; the projection brings their sum back to the size of the residual.
    wkv = draw.normal(prefix + "wkv.weight", (hidden * (copies + 1), fan_in), 2.0**5 * fan_in**-0.5)
    weight, scale = draw.table(prefix + "embed", rows)
    return {
        prefix + "embed.weight": weight,
        prefix + "embed.scale": scale,
        prefix + "wkv.weight": wkv,
        prefix + "q_weight": draw.near_one(prefix + "q_weight", (copies, hidden)),
        prefix + "k_weight": draw.near_one(prefix + "k_weight", (copies, hidden)),
    }


class _Weights:
    """Draws each tensor from a stream of its own, named by the tensor: adding one never changes another."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _stream(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, 2, *name.encode()]))

    def normal(self, name: str, shape: tuple[int, ...], spread: float) -> Any:
        """bfloat16, mean 0."""
        import torch

        values = self._stream(name).standard_normal(shape, dtype=np.float32) * np.float32(spread)
        return torch.from_numpy(values).to(torch.bfloat16)

    def near_one(self, name: str, shape: tuple[int, ...]) -> Any:
        """bfloat16, 1 ± 0.1: a norm's weight that is not the identity."""
        import torch

        values = 1 + self._stream(name).standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        return torch.from_numpy(values).to(torch.bfloat16)

    def table(self, name: str, rows: int) -> tuple[Any, Any]:
        """float8_e4m3fn[rows, 256] spread like a normal, and float8_e8m0fnu[rows, 8]."""
        import torch

        stream = self._stream(name)
        codes = _normal_codes()
        weight = codes[np.frombuffer(stream.bytes(rows * WEIGHT_BYTES), dtype=np.uint8)]
        picks = np.frombuffer(stream.bytes(rows * SCALE_BYTES), dtype=np.uint8) % len(SCALE_CODES)
        scale = np.asarray(SCALE_CODES, dtype=np.uint8)[picks]
        return (
            torch.from_numpy(weight.reshape(rows, WEIGHT_BYTES)).view(torch.float8_e4m3fn),
            torch.from_numpy(scale.reshape(rows, SCALE_BYTES)).view(torch.float8_e8m0fnu),
        )


def _normal_codes() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[256]: the e4m3 codes of 256 quantiles of a normal. One is −0, which a reader must turn into
    +0."""
    from statistics import NormalDist

    import torch

    quantiles = [NormalDist().inv_cdf((place + 0.5) / 256) for place in range(256)]
    codes: np.ndarray[Any, np.dtype[np.uint8]] = (
        torch.tensor(quantiles).to(torch.float8_e4m3fn).view(torch.uint8).numpy().copy()
    )
    codes[127] = 0x80
    return codes


def _printable(text: str) -> bool:
    return (
        bool(text) and not text.startswith("<|") and all(sign == "\n" or " " <= sign <= "~" for sign in text)
    )


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: tensor for part in parts for name, tensor in part.items()}


def _write_shards(folder: Path, shards: list[dict[str, Any]]) -> None:
    from safetensors.torch import save_file

    weight_map: dict[str, str] = {}
    total = 0
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """The command line. Exit 0: the checkpoint is there; 1: it cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkyard_engine.lab.checkpoint", description=main.__doc__
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--engram-vocab-size", type=int, default=ENGRAM_VOCAB_SIZE, help="smaller tables for tests"
    )
    options = parser.parse_args(arguments)
    try:
        made = make(options.out.absolute(), options.seed, options.engram_vocab_size)
    except CheckpointError as error:
        sys.stderr.write(f"checkpoint: {error}\n")
        return 1
    sys.stdout.write(f"{options.out}: {'made' if made else 'was there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""From token ids to row ids: the layout of the tables and the rolling hash, exactly as the model was trained.

Source of the rules and of the constants: the model's public reference code and its configuration keys
`engram_*`; the tests hold them against the serving engine's own implementation and against the published row
counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.errors import ConfigError

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

SEED_STEP = 10007  # numpy's default_rng(10007 × layer) draws the multipliers of a layer
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # Miller-Rabin, exact below 3.3e24
WEIGHT_BYTES = 256  # one row: 256 values of e4m3 …
SCALE_BYTES = 8  # … and one e8m0 scale for every 32 of them
MAX_TABLE_ROWS = 1 << 40  # far above 384 M; keeps every product below inside 64 bits


def is_prime(number: int) -> bool:
    """Deterministic Miller-Rabin."""
    if number < 2:
        return False
    for small in _WITNESSES:
        if number % small == 0:
            return number == small
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd //= 2
        twos += 1
    for witness in _WITNESSES:
        power = pow(witness, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one model.

    layer_ids: the decoder layers (0-based) that carry a table. primes[i][c]: rows of column c of layer i's
    table; column c = (n-gram size − 2) × heads + head. head_dim: values per row.
    """

    layer_ids: tuple[int, ...]
    max_ngram_size: int
    heads: int
    head_dim: int
    primes: tuple[tuple[int, ...], ...]

    @classmethod
    def build(
        cls,
        *,
        layer_ids: Sequence[int],
        max_ngram_size: int,
        heads: int,
        vocab_size: int,
        head_dim: int = WEIGHT_BYTES,
    ) -> Layout:
        """Draws the bucket sizes: one ascending walk over primes ≥ vocab_size, none used twice; layer, then
        n, then head.
        """
        if not layer_ids or len(set(layer_ids)) != len(layer_ids) or min(layer_ids) < 0:
            raise ConfigError(f"engram_layer_ids must be distinct layer numbers ≥ 0, not {list(layer_ids)}")
        if max_ngram_size < 2 or heads < 1 or vocab_size < 2:
            raise ConfigError(
                f"engram_max_ngram_size {max_ngram_size}, engram_n_heads {heads}, "
                f"engram_vocab_size {vocab_size}: "
                "at least 2, 1 and 2 are needed"
            )
        columns = (max_ngram_size - 1) * heads
        if vocab_size * columns > MAX_TABLE_ROWS:
            raise ConfigError(
                f"engram_vocab_size {vocab_size} × {columns} columns exceeds {MAX_TABLE_ROWS} rows"
            )
        candidate, tables = vocab_size, []
        for _ in layer_ids:
            sizes: list[int] = []
            while len(sizes) < columns:
                if is_prime(candidate):
                    sizes.append(candidate)
                candidate += 1
            tables.append(tuple(sizes))
        return cls(tuple(layer_ids), max_ngram_size, heads, head_dim, tuple(tables))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Layout:
        """From a model's config.json (the keys may sit under `text_config`); checks
        `engram_num_embeddings`.
        """
        inner = config.get("text_config")
        keys = {**(inner if isinstance(inner, Mapping) else {}), **config}
        try:
            layout = cls.build(
                layer_ids=[int(layer) for layer in keys["engram_layer_ids"]],
                max_ngram_size=int(keys["engram_max_ngram_size"]),
                heads=int(keys["engram_n_heads"]),
                vocab_size=int(keys["engram_vocab_size"]),
                head_dim=int(keys["engram_head_dim"]),
            )
            promised = tuple(int(rows) for rows in keys["engram_num_embeddings"])
        except KeyError as missing:
            raise ConfigError(
                f"config.json has no key {missing.args[0]!r}: this model has no Engram tables"
            ) from None
        except (TypeError, ValueError) as wrong:
            raise ConfigError(f"config.json: an engram_* key has the wrong type: {wrong}") from None
        if promised != layout.table_rows:
            raise ConfigError(
                f"config.json: engram_num_embeddings is {list(promised)}, "
                f"the primes give {list(layout.table_rows)}; "
                "the hash would address other rows than the checkpoint holds"
            )
        return layout

    @property
    def columns(self) -> int:
        """Rows looked up per token and layer."""
        return (self.max_ngram_size - 1) * self.heads

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of each layer's table."""
        return tuple(sum(sizes) for sizes in self.primes)

    def bounds(self, layer: int) -> tuple[int, ...]:
        """columns + 1 prefix sums: column c of this layer owns rows [bounds[c], bounds[c + 1])."""
        if layer not in self.layer_ids:
            raise ConfigError(f"layer {layer} carries no Engram table; layers {list(self.layer_ids)} do")
        out = [0]
        for size in self.primes[self.layer_ids.index(layer)]:
            out.append(out[-1] + size)
        return tuple(out)


def multipliers(layer_ids: Sequence[int], max_ngram_size: int, compressed_vocab_size: int) -> I64:
    """int64[layers, max_ngram_size], odd; bounded so that compressed id × multiplier fits int64."""
    bound = max(1, np.iinfo(np.int64).max // compressed_vocab_size // 2)
    rows = []
    for layer in layer_ids:
        drawn = np.random.default_rng(SEED_STEP * layer).integers(
            low=0, high=bound, size=(max_ngram_size,), dtype=np.int64
        )
        rows.append(drawn * 2 + 1)
    return np.stack(rows)


def compress_tokens(texts: Sequence[str], raw: Sequence[str], normalise: Any) -> tuple[I64, int]:
    """Token id → compressed id, and how many compressed ids there are.

    texts[i]: token i decoded alone, without clean-up; raw[i]: its raw token string, the key of tokens whose
    bytes are no whole character; normalise: str → str, see `tokenizer_normaliser`.
    """
    numbers: dict[str, int] = {}
    out = np.empty(len(texts), dtype=np.int64)
    for token, text in enumerate(texts):
        key = raw[token] if "\ufffd" in text else (normalise(text) or text)
        out[token] = numbers.setdefault(key, len(numbers))
    return out, len(numbers)


def tokenizer_normaliser() -> Any:
    """str → str with the `tokenizers` library: NFKC, NFD, no accents, lower case, one space for a run, strip.

    A lone space would be stripped to nothing, so it waits out the strip as a private-use character.
    """
    from tokenizers import Regex, normalizers

    lone_space = "\ue000"
    chain = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), lone_space),
            normalizers.Strip(),
            normalizers.Replace(lone_space, " "),
        ]
    )
    return chain.normalize_str


def compress_tokenizer(tokenizer: Any, expected_size: int) -> I64:
    """The token map of a Hugging Face fast tokenizer: int64[len(tokenizer)].

    Raises ConfigError when the number of compressed ids is not the configuration's: every multiplier
    depends on it.
    """
    backend = tokenizer.backend_tokenizer
    ids = range(len(tokenizer))
    texts = [backend.decode([token], skip_special_tokens=False) for token in ids]
    raw = [backend.id_to_token(token) or "" for token in ids]
    table, size = compress_tokens(texts, raw, tokenizer_normaliser())
    if size != expected_size:
        raise ConfigError(
            f"this tokenizer compresses to {size} ids, engram_compressed_vocab_size says {expected_size}: "
            "every row id would differ from training"
        )
    return table


@dataclass(frozen=True, slots=True)
class Hasher:
    """token_map: int64[tokens]; factors: int64[layers, n]; pad: the compressed pad id; image_token: a dead
    token or None.
    """

    layout: Layout
    token_map: I64
    factors: I64
    pad: int
    image_token: int | None = None

    @classmethod
    def build(
        cls,
        layout: Layout,
        token_map: I64,
        pad_token: int,
        compressed_vocab_size: int,
        image_token: int | None = None,
    ) -> Hasher:
        """pad_token is a token id; it is compressed here."""
        if (
            math.prod((compressed_vocab_size, 1)) < 1
            or int(token_map.max(initial=0)) >= compressed_vocab_size
        ):
            raise ConfigError(f"the token map reaches beyond {compressed_vocab_size} compressed ids")
        factors = multipliers(layout.layer_ids, layout.max_ngram_size, compressed_vocab_size)
        return cls(layout, token_map, factors, int(token_map[pad_token]), image_token)

    def windows(self, tokens: I64, *, history: I64 | None = None, position: int = 0) -> tuple[I64, Bools]:
        """One run of tokens as look-back windows.

        tokens: int64[T], the first of them at `position` in its sequence; history: the tokens before it,
        oldest first, at most n − 1 of them are used. Returns tokens int64[T, n] (column s: the s-th
        predecessor) and blocked bool[T, n] (the look-back left the sequence).
        """
        reach = self.layout.max_ngram_size - 1
        before = np.zeros(reach, dtype=np.int64)
        if history is not None and len(history):
            used = history[-reach:]
            before[reach - len(used) :] = used
        line = np.concatenate([before, tokens.astype(np.int64)])
        at = np.arange(len(tokens))[:, None] + reach - np.arange(reach + 1)[None, :]
        place = position + np.arange(len(tokens))
        return line[at], place[:, None] < np.arange(reach + 1)[None, :]

    def row_ids(self, tokens: I64, blocked: Bools) -> I64:
        """tokens int64[T, n], blocked bool[T, n] (see `windows`) → row ids int64[T, layers, columns] of
        each table.
        """
        if self.image_token is not None:
            # A look-back that meets an image token sees nothing behind it either.
            blocked = np.logical_or.accumulate(blocked | (tokens == self.image_token), axis=1)
        compressed = np.where(blocked, self.pad, self.token_map[tokens])
        products = compressed[:, None, :] * self.factors[None, :, :]
        rolling = products[:, :, 0]
        parts = []
        heads = self.layout.heads
        primes = np.asarray(self.layout.primes, dtype=np.int64)
        for step in range(1, self.layout.max_ngram_size):
            rolling = rolling ^ products[:, :, step]
            parts.append(rolling[:, :, None] % primes[None, :, (step - 1) * heads : step * heads])
        offsets = np.asarray(
            [self.layout.bounds(layer)[:-1] for layer in self.layout.layer_ids], dtype=np.int64
        )
        return np.concatenate(parts, axis=2) + offsets[None]

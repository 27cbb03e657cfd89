"""Hash, layout and ownership against published figures and against each other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine.engram.errors import ConfigError, OwnershipError
from sparkyard_engine.engram.hashing import Hasher, Layout, compress_tokens, is_prime, multipliers
from sparkyard_engine.engram.ownership import Ownership, Slice, columns_of, slice_of, slices
from tests.engram_checkpoint import TRUE_CONFIG

PUBLISHED_PRIMES = {  # distance from 16,000,000, in column order
    1: "57 79 81 97 121 129 133 183 189 207 211 253 277 289 307 321 339 381 393 399 403 409 447 463",
    14: "477 487 499 507 511 573 609 627 667 669 693 697 711 729 759 769 781 799 813 819 841 877 879 889",
}
PUBLISHED_MULTIPLIERS = [
    [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    [67716810739261, 51510806800915, 30921347202721, 82619226485591],
]
PUBLISHED_BOUNDS = {
    (Ownership.CONTIGUOUS, 2, 1): [0, 192001740, 384006168],
    (Ownership.CONTIGUOUS, 3, 1): [0, 128000880, 256002934, 384006168],
    (Ownership.CONTIGUOUS, 3, 14): [0, 128004290, 256009984, 384016682],
    (Ownership.CONTIGUOUS, 4, 1): [0, 96000564, 192001740, 288003654, 384006168],
    (Ownership.CONTIGUOUS, 4, 14): [0, 96003054, 192007016, 288011564, 384016682],
    (Ownership.ROWS, 3, 1): [0, 128002056, 256004112, 384006168],
    (Ownership.ROWS, 3, 14): [0, 128005560, 256011121, 384016682],
    (Ownership.ROWS, 4, 1): [0, 96001542, 192003084, 288004626, 384006168],
    (Ownership.ROWS, 4, 14): [0, 96004170, 192008341, 288012511, 384016682],
    (Ownership.CONTIGUOUS, 8, 14): [
        *(0, 48001463, 96003054, 144004957, 192007016, 240009215, 288011564, 336014037, 384016682)
    ],
}
LAYOUT = Layout.from_config(TRUE_CONFIG)


def test_the_true_layout_has_the_published_rows_and_primes() -> None:
    assert LAYOUT.table_rows == (384_006_168, 384_016_682)
    for layer, primes in zip(LAYOUT.layer_ids, LAYOUT.primes, strict=True):
        assert [prime - 16_000_000 for prime in primes] == [int(n) for n in PUBLISHED_PRIMES[layer].split()]


def test_the_true_multipliers() -> None:
    assert multipliers((1, 14), 4, 99_092).tolist() == PUBLISHED_MULTIPLIERS


@pytest.mark.parametrize(("rule", "tp", "layer"), PUBLISHED_BOUNDS)
def test_published_row_ranges(rule: Ownership, tp: int, layer: int) -> None:
    bounds = PUBLISHED_BOUNDS[rule, tp, layer]
    parts = slices(rule, LAYOUT.bounds(layer), tp)
    assert [part.ranges for part in parts] == [((a, b),) for a, b in pairwise(bounds)]


def test_balanced_gives_each_rank_the_same_share_of_every_n_gram_order() -> None:
    for tp in (2, 3, 4, 8):
        for rank in range(tp):
            columns = columns_of(Ownership.BALANCED, 24, tp, rank)
            assert columns is not None
            orders = [sum(column // 8 == order for column in columns) for order in range(3)]
            assert max(orders) - min(orders) <= (0 if tp != 3 else 1)
            assert len(columns) == 24 // tp


def test_rows_of_a_node_in_gib() -> None:
    for tp, gib in ((3, 62.94), (4, 47.21)):
        for rule in Ownership:
            for rank in range(tp):
                rows = sum(slice_of(rule, LAYOUT.bounds(layer), tp, rank).rows for layer in (1, 14))
                assert rows * 264 / 2**30 == pytest.approx(gib, abs=0.01)


bounds_lists = st.lists(st.integers(1, 50), min_size=1, max_size=30).map(
    lambda sizes: [0, *np.cumsum(sizes).tolist()]
)


@given(bounds_lists, st.integers(1, 9), st.sampled_from(Ownership), st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_every_row_has_one_owner_and_one_local_number(bounds, tp, rule, data) -> None:
    parts = slices(rule, bounds, tp)
    ids = np.arange(bounds[-1])
    assert (sum(part.owned(ids).astype(int) for part in parts) == 1).all()
    for part in parts:
        mine = ids[part.owned(ids)]
        assert part.local(mine).tolist() == list(range(part.rows))
        first = data.draw(st.integers(0, max(part.rows - 1, 0)))
        count = data.draw(st.integers(0, part.rows))
        spans = part.spans(first, count)
        assert [row for a, b in spans for row in range(a, b)] == mine[first : first + count].tolist()


def test_a_foreign_row_is_refused_by_number() -> None:
    part = Slice(((10, 20), (30, 40)))
    with pytest.raises(OwnershipError, match="row 25 is not in this slice") as refused:
        part.local(np.asarray([11, 25, 9]))
    assert refused.value.row == 25
    with pytest.raises(ConfigError, match="ascend"):
        Slice(((0, 5), (4, 9)))
    with pytest.raises(ConfigError, match="rank 3 of 3"):
        slice_of(Ownership.ROWS, [0, 9], 3, 3)


def slow_row_ids(
    layout: Layout, compressed: list[list[int]], factors: list[list[int]]
) -> list[list[list[int]]]:
    """The rule written out with Python integers, one token and one column at a time."""
    out = []
    for window in compressed:
        per_layer = []
        for place, layer in enumerate(layout.layer_ids):
            row = []
            for column in range(layout.columns):
                order = column // layout.heads + 2
                mixed = 0
                for back in range(order):
                    mixed ^= window[back] * factors[place][back]
                row.append(layout.bounds(layer)[column] + mixed % layout.primes[place][column])
            per_layer.append(row)
        out.append(per_layer)
    return out


@given(st.lists(st.integers(0, 29), min_size=1, max_size=12), st.lists(st.integers(0, 29), max_size=5))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_row_ids_follow_the_written_rule(tokens, before) -> None:
    layout = Layout.build(layer_ids=(1, 4), max_ngram_size=4, heads=3, vocab_size=101)
    token_map = np.arange(30) % 17
    hasher = Hasher.build(layout, token_map, 2, 17)
    window, blocked = hasher.windows(
        np.asarray(tokens), history=np.asarray(before, dtype=int), position=len(before)
    )
    line = [*before, *tokens]
    expected = [
        [token_map[line[at - back]] if at >= back else hasher.pad for back in range(4)]
        for at in range(len(before), len(line))
    ]
    ids = hasher.row_ids(window, blocked)
    slow = slow_row_ids(layout, [[int(n) for n in row] for row in expected], hasher.factors.tolist())
    assert ids.tolist() == slow
    # A run cut in two hashes to the same rows: only the last three tokens matter.
    cut = len(tokens) // 2
    tail = hasher.row_ids(
        *hasher.windows(
            np.asarray(tokens[cut:]),
            history=np.asarray(line[: len(before) + cut], dtype=int),
            position=len(before) + cut,
        )
    )
    assert tail.tolist() == slow[cut:]


def test_an_image_token_hides_what_lies_behind_it() -> None:
    layout = Layout.build(layer_ids=(1,), max_ngram_size=4, heads=1, vocab_size=101)
    hasher = Hasher.build(layout, np.arange(30), 2, 30, image_token=9)
    seen = hasher.row_ids(*hasher.windows(np.asarray([5, 9, 6, 7])))
    other = hasher.row_ids(*hasher.windows(np.asarray([8, 9, 6, 7])))
    assert (seen[2:] == other[2:]).all()
    plain = Hasher.build(layout, np.arange(30), 2, 30)
    assert (plain.row_ids(*plain.windows(np.asarray([5, 9, 6, 7])))[3] != seen[3]).any()


def test_tokens_compress_first_come_and_broken_bytes_keep_their_own_key() -> None:
    texts = ["Ab", "ab", "\ufffd", "\ufffd", " ", "\n"]
    raw = ["Ab", "ab", "<0xE2>", "<0x82>", "Ġ", "Ċ"]
    table, size = compress_tokens(texts, raw, lambda text: text.strip().lower())
    assert (table.tolist(), size) == ([0, 0, 1, 2, 3, 4], 5)


def test_a_configuration_that_cannot_be_right_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="no key 'engram_layer_ids'"):
        Layout.from_config({})
    with pytest.raises(ConfigError, match="the primes give"):
        Layout.from_config({**TRUE_CONFIG, "engram_num_embeddings": [1, 2]})
    with pytest.raises(ConfigError, match="wrong type"):
        Layout.from_config({**TRUE_CONFIG, "engram_n_heads": "many"})
    assert Layout.from_config({"text_config": TRUE_CONFIG}) == LAYOUT
    assert [n for n in range(60) if is_prime(n)] == [
        2,
        3,
        5,
        7,
        11,
        13,
        17,
        19,
        23,
        29,
        31,
        37,
        41,
        43,
        47,
        53,
        59,
    ]

"""What an earlier boot says about the next: corrections of the ledger's lines, and how long a phase takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node_agent import boots
from orchestrator.last_good import images, newest
from orchestrator.ledgers import rules
from orchestrator.load import load_profile
from orchestrator.model.boot import BootRecord
from orchestrator.model.event import Progress
from orchestrator.model.facts import BootFacts, RankFacts
from orchestrator.model.step import RankAt
from orchestrator.plan.judge import judge, published_contents
from orchestrator.plan.ledger import Place
from orchestrator.plan.measured import GRAPHS, REST, corrections, elapsed_and_expected_s
from orchestrator.view.text import _amount
from orchestrator.words import phase
from tests.clusters import lab_cluster, lab_profile
from tests.sim import fresh, make_goal

GIB = 1 << 30
PROFILE = load_profile("deepseek-v4.1-flash-tp3")
CONTENTS, RULES = published_contents(), rules()
PLACES = [Place(f"spark-{number}") for number in range(1, 4)]
FIRST = judge(PROFILE, PLACES, CONTENTS, RULES)
PREDICTED = {line.name: line.bytes for line in FIRST.ranks[1].lines}


def record(rank: int = 1, profile: str = PROFILE.identity, **measured: int) -> BootRecord:
    base = {"deployment": PROFILE.name, "generation": 3, "rank": rank, "profile": profile, "proven": True}
    return BootRecord.model_validate(base | {"predicted": PREDICTED, "measured": measured})


def test_a_boot_corrects_the_lines_that_no_source_gives() -> None:
    known = sum(
        size
        for name, size in PREDICTED.items()
        if name.startswith(("weights", "rope", "KV", "sliding", "kernel workspace", "NCCL", "API"))
    )
    before, rest = 116 * GIB, 4 * GIB
    seen = record(
        memory_before_bytes=before, memory_low_water_bytes=before - known - GIB - rest, graphs_bytes=GIB
    )
    found = corrections([seen], PROFILE.identity)
    assert found == {1: {GRAPHS: GIB, REST: rest}}
    judged = judge(PROFILE, PLACES, CONTENTS, RULES, found)
    lines = {line.name: line for line in judged.ranks[1].lines}
    for name, size in found[1].items():
        assert (lines[name].bytes, lines[name].uncertainty_bytes) == (size, 0)
        assert lines[name].source == "measured at an earlier boot"
    assert judged.ranks[1].uncertainty_bytes < FIRST.ranks[1].uncertainty_bytes
    assert judged.ranks[0] == FIRST.ranks[0], "nothing was measured there"


def test_a_boot_of_another_profile_or_without_figures_says_nothing() -> None:
    full = {"memory_before_bytes": 116 * GIB, "memory_low_water_bytes": GIB}
    assert corrections([record(profile="0" * 64, **full)], PROFILE.identity) == {}
    assert corrections([record()], PROFILE.identity) == {}
    unproven = record(**full).model_copy(update={"proven": False})
    assert corrections([unproven], PROFILE.identity) == {}


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.one_of(st.none(), st.integers(0, 1 << 40)))
def test_no_line_is_ever_negative(before: int, low: int, graphs: int | None) -> None:
    seen = {"memory_before_bytes": before, "memory_low_water_bytes": low} | (
        {} if graphs is None else {"graphs_bytes": graphs}
    )
    assert all(
        size >= 0
        for lines in corrections([record(**seen)], PROFILE.identity).values()
        for size in lines.values()
    )


def test_earlier_boots_say_when_a_phase_is_reached() -> None:
    goal = make_goal(lab_profile(), lab_cluster())
    name = goal.profile.name
    earlier = [
        BootFacts(
            deployment=name, generation=number, memory_before_bytes=1, proven=True, timeline={"ready": at}
        )
        for number, at in enumerate((900.0, 100.0, 110.0, 120.0, 130.0, 140.0), 1)
    ]
    now = BootFacts(deployment=name, generation=9, memory_before_bytes=1, started_unix_s=1000.0)
    here = fresh("spark-1", goal).model_copy(update={"boots": (*earlier, now), "now_unix_s": 1030.0})
    assert elapsed_and_expected_s(here, RankAt(name, 9, 0, "ready")) == (30.0, 120.0), "the newest five"
    assert elapsed_and_expected_s(here, RankAt(name, 9, 0, "joined")) is None
    assert elapsed_and_expected_s(here, RankAt("other", 9, 0, "ready")) is None


def test_graphs_are_added_up_over_their_captures() -> None:
    log = (
        "[2026-11-29 12:00:00 TP0] Capture cuda graph begin. This can take up to several minutes.\n"
        "[2026-11-29 12:00:40 TP0] Capture cuda graph end. Time elapsed: 40.1 s. mem usage=1.50 GB. avail mem=9.0 GB.\n"
        "[2026-11-29 12:00:50 TP0] Capture draft cuda graph end. Time elapsed: 9 s. mem usage=0.25 GB. avail mem=8 GB."
    )
    assert boots.graphs_bytes(log) == 7 * GIB // 4
    assert boots.graphs_bytes("nothing") is None


def brought(generation: int, rank: int, at: float, package: str = "a" * 64) -> BootRecord:
    goal = {"profile": PROFILE.model_dump(mode="json", by_alias=True), "package": package, "package_bytes": 1}
    more = {"generation": generation, "recorded_unix_s": at, "goal": goal}
    return BootRecord.model_validate(record(rank).model_dump() | more)


def test_the_last_good_boot_is_the_newest_that_every_rank_proved() -> None:
    whole = [brought(3, rank, 100.0 + rank) for rank in range(3)]
    partial = [brought(4, rank, 200.0) for rank in range(2)]
    mixed = [brought(5, rank, 300.0, "b" * 64 if rank else "a" * 64) for rank in range(3)]
    found = newest([*whole, *partial, *mixed], None)
    assert found is not None
    assert (found.generation, found.at_unix_s) == (3, 102.0)
    assert newest([*whole, *(brought(6, rank, 400.0) for rank in range(3))], PROFILE.name).generation == 6
    assert newest(whole, "another") is None
    assert newest([], None) is None


def test_the_images_of_the_last_good_boots_are_kept() -> None:
    old, new = ("1" * 64, "2" * 64)
    ranks = [brought(generation, rank, float(generation)) for generation in (3, 4) for rank in range(3)]
    ranks = [
        one.model_copy(
            update={"goal": one.goal.model_copy(update={"image": old if one.generation == 3 else new})}
        )
        for one in ranks
    ]
    assert images(ranks) == {new}
    assert images([one for one in ranks if one.rank != 1]) == frozenset()


def test_the_phase_says_how_far_the_boot_is() -> None:
    base = {"deployment": "d", "generation": 1, "rank": 0, "spec": "a" * 64, "alive": True}
    bar = ("Loading safetensors checkpoint shards:  45% Completed | 21/46", "Loading: 58% Completed | 27/46")
    assert phase(RankFacts(**base, phase="loading", log_tail=bar)) == "loading 50 %"
    assert phase(RankFacts(**base, phase="loading")) == "loading"
    granted = RankFacts(**base, phase="graphs", kv_tokens=1000, kv_tokens_asked=2000)
    assert phase(granted) == "graphs, 1,000 KV tokens of 2,000 asked"
    assert phase(RankFacts(**base, phase="joined")) == "joined"


def test_a_wait_says_how_long_it_will_take() -> None:
    assert _amount(Progress("n", "w", 30, 120, "s", "loading")) == "loading, 30 s, about 90 s left"
    assert _amount(Progress("n", "w", 150, 120, "s", "kv")) == "kv, 150 s, earlier boots took 120 s"

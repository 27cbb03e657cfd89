"""What may be ranked, what may not and why, and what has to be said about it."""

from __future__ import annotations

import pytest

from orchestrator.bench.compare import compare
from orchestrator.bench.export import comparison_markdown, csv_text, markdown
from orchestrator.bench.obstacles import Dimension
from orchestrator.bench.published import PACKAGED, read_published
from orchestrator.bench.record import (
    Cache,
    Figure,
    FindingNote,
    Hardware,
    Measure,
    Method,
    NodeSample,
    PromptKind,
    Provenance,
    Record,
    Row,
    Speculation,
    during,
    format_name,
    hardware_name,
)
from orchestrator.errors import ConfigError

SPECULATION = Speculation(algorithm="DSPARK", block_size=5, accept_length=2.8)
KNOWN = Provenance(
    model="deepseek-ai/DeepSeek-V4.1-Flash",
    model_revision="dba1be0a",
    engine="sglang",
    engine_version="0.5.23",
    quantisation="MXFP4 experts + FP8 dense",
    kv_format="fp8_e4m3",
    context_limit_tokens=262_144,
    tp=3,
    speculation=SPECULATION,
    boot_id="boot-1",
    hardware=(Hardware(name="GB10", count=3),),
)
METHOD = Method(
    load_from="spark2",
    endpoint="chat",
    rounds=3,
    warm_up_rounds=1,
    seed=0,
    temperature=0.0,
    ignore_eos=True,
)


def figure(name: str, *values: float) -> Figure:
    ordered = sorted(values)
    return Figure(
        name=name,
        unit="tok/s",
        median=ordered[len(ordered) // 2],
        low=ordered[0],
        high=ordered[-1],
        rounds=len(ordered),
    )


def row(*values: float, measure: Measure = Measure.DECODE, **changes: object) -> Row:
    name = "prefill_tok_s" if measure is Measure.PREFILL else "decode_tok_s"
    plain = {
        "measure": measure,
        "kind": PromptKind.PROSE,
        "streams": 1,
        "cache": Cache.COLD,
        "prompt_tokens": 512,
        "output_tokens": 256,
        "requests": 3,
        "prompts_sha256": "a",
        "client_cpu_share": 0.1,
        "figures": (figure(name, *values),),
    }
    return Row.model_validate(plain | changes)


def record(name: str, *rows: Row, nodes: tuple[NodeSample, ...] = (), **known: object) -> Record:
    return Record(
        schema="sparkyard/bench/v1",
        name=name,
        origin="ours",
        method=METHOD,
        provenance=KNOWN.model_copy(update=known),
        rows=rows,
        nodes=during(nodes),
    )


def reasons(*records: Record) -> list[tuple[Dimension, str]]:
    comparison = compare(records)
    assert not comparison.rankings
    return [(reason.dimension, reason.text) for refusal in comparison.refusals for reason in refusal.reasons]


def flags(*records: Record) -> str:
    comparison = compare(records)
    assert len(comparison.rankings) == 1
    assert not comparison.refusals
    ranking = comparison.rankings[0]
    return "\n".join([*ranking.flags, *(flag for placed in ranking.placed for flag in placed.flags)])


def test_rows_that_agree_are_ranked_and_a_difference_beyond_the_spread_is_called_one() -> None:
    comparison = compare([record("slow", row(50, 51, 52)), record("fast", row(60, 61, 62))])
    (ranking,) = comparison.rankings
    assert [placed.entry.record.name for placed in ranking.placed] == ["fast", "slow"]
    assert [placed.significant for placed in ranking.placed] == [False, True]
    assert ranking.placed[1].ratio == pytest.approx(51 / 61)
    assert (ranking.placed[1].ratio_low, ranking.placed[1].ratio_high) == (50 / 62, 52 / 60)
    assert not ranking.flags


def test_a_difference_within_the_spread_is_none() -> None:
    comparison = compare([record("a", row(50, 55, 58)), record("b", row(52, 56, 57))])
    assert not any(placed.significant for placed in comparison.rankings[0].placed)
    assert "no difference shown" in comparison_markdown(comparison)


def test_three_rounds_that_barely_lie_apart_are_chance_and_five_are_not() -> None:
    barely = ((50, 52, 54), (55, 57, 59))
    comparison = compare([record("a", row(*barely[0])), record("b", row(*barely[1]))])
    assert not any(placed.significant for placed in comparison.rankings[0].placed)
    more = [record(name, row(*values, *values[:2])) for name, values in zip("ab", barely, strict=True)]
    assert any(placed.significant for placed in compare(more).rankings[0].placed)


def test_lower_latency_comes_first() -> None:
    def chat(name: str, value: float) -> Record:
        figures = (figure("ttft_behind_ms", value, value + 1, value + 2),)
        return record(name, row(1, measure=Measure.CHAT_BEHIND_PREFILL, figures=figures))

    ranking = compare([chat("late", 900), chat("soon", 300)]).rankings[0]
    assert [placed.entry.record.name for placed in ranking.placed] == ["soon", "late"]


def test_filler_is_not_ranked_against_real_text() -> None:
    filler = row(5855, measure=Measure.PREFILL, kind=PromptKind.FILLER, prompt_tokens=32768)
    real = row(4700, 4750, 4800, measure=Measure.PREFILL, kind=PromptKind.DOCUMENT, prompt_tokens=32768)
    ((dimension, text),) = reasons(record("theirs", filler), record("ours", real))
    assert dimension is Dimension.PROMPT_KIND
    assert "repeated-token filler against real text (document)" in text


def test_4k_is_not_ranked_against_300k_of_context() -> None:
    short, long = (row(30, 31, 32, prompt_tokens=tokens) for tokens in (4_096, 300_000))
    assert reasons(record("short", short), record("long", long)) == [
        (Dimension.CONTEXT, "4,096 against 300,000 prompt tokens")
    ]


def test_a_quantised_model_is_not_ranked_against_the_native_one() -> None:
    found = reasons(
        record("native", row(50, 51, 52)), record("exl3", row(70, 71, 72), quantisation="EXL3 3.5 bpw")
    )
    assert found == [(Dimension.FORMAT, "native against EXL3 3.5")]


def test_warm_is_not_ranked_against_cold() -> None:
    found = reasons(record("cold", row(50, 51, 52)), record("warm", row(90, 91, 92, cache=Cache.WARM)))
    assert found == [(Dimension.CACHE, "cold against warm prefix cache")]


def test_other_speculation_hardware_model_and_prompt_kind_are_not_ranked() -> None:
    base = record("base", row(50, 51, 52))
    other = record(
        "other",
        row(50, 51, 52, kind=PromptKind.CODE),
        speculation=SPECULATION.model_copy(update={"block_size": 3}),
        hardware=(Hardware(name="GB10", count=4),),
        model="some/GLM-5.3",
    )
    assert reasons(base, other) == [
        (Dimension.MODEL, "deepseek-v4.1-flash against glm-5.3"),
        (Dimension.PROMPT_KIND, "prose against code prompts"),
        (Dimension.SPECULATION, "dspark block 5 against dspark block 3"),
        (Dimension.HARDWARE, "3 × GB10 against 4 × GB10"),
    ]


def test_what_is_not_stated_is_not_ranked() -> None:
    found = reasons(record("ours", row(50, 51, 52)), record("silent", row(50, 51, 52), quantisation=None))
    assert found == [(Dimension.FORMAT, "silent does not state its format")]


def test_a_dimension_can_be_the_object_of_the_comparison() -> None:
    records = [record("off", row(30, 31, 32), speculation="off"), record("on", row(50, 51, 52))]
    comparison = compare(records, frozenset({Dimension.SPECULATION}))
    assert comparison.rankings[0].placed[0].entry.record.name == "on"
    assert comparison.rankings[0].flags[0] == "as asked, across speculation: off against dspark block 5"


def test_only_the_nearest_row_explains_a_refusal() -> None:
    ours = record("ours", row(50, 51, 52), row(70, 71, 72, kind=PromptKind.CODE))
    theirs = record("theirs", row(60, 61, 62), row(5, 6, 7, kind=PromptKind.JSON))
    comparison = compare([ours, theirs])
    assert [ranking.placed[0].entry.record.name for ranking in comparison.rankings] == ["theirs"]
    (refusal,) = comparison.refusals
    assert (refusal.row.row.kind, refusal.other.name) == (PromptKind.CODE, "theirs")


def test_two_boots_are_flagged() -> None:
    assert "two boots" in flags(record("a", row(50, 51, 52)), record("b", row(50, 51, 52), boot_id="boot-2"))
    assert "boots" not in flags(record("a", row(50, 51, 52)), record("b", row(50, 51, 52)))


def test_a_single_run_against_medians_is_flagged_and_never_significant() -> None:
    records = [record("median", row(50, 51, 52)), record("single", row(80))]
    assert "a single run: no spread is known" in flags(*records)
    assert not any(placed.significant for placed in compare(records).rankings[0].placed)


def test_a_slow_gpu_and_a_foreign_load_are_flagged() -> None:
    samples = (
        NodeSample(node="spark1", unix_s=1, sm_clock_mhz=2400, foreign_load=""),
        NodeSample(node="spark2", unix_s=1, sm_clock_mhz=1810, foreign_load=""),
        NodeSample(node="spark3", unix_s=1, sm_clock_mhz=850, foreign_cores=0.1, foreign_load=""),
        NodeSample(node="spark3", unix_s=2, foreign_cores=1.9, foreign_load="1.9 cores busy with others"),
        NodeSample(node="spark3", unix_s=3, foreign_cores=0.4, foreign_load="0.4 cores busy with others"),
    )
    said = flags(record("a", row(50, 51, 52)), record("b", row(50, 51, 52), nodes=samples))
    assert "spark3: slow GPU state: never above 850 MHz under load" in said
    assert "spark3: slower GPU than its peers: 850 against 2400 MHz" in said
    assert "spark3: foreign load: 1.9 cores busy with others" in said
    assert "spark1: slow" not in said


def test_a_finding_of_the_doctor_is_flagged() -> None:
    slow = FindingNote(check="gpu.slow_state", where="spark2", severity="warning", measured="GEMV 71 GB/s")
    said = flags(record("a", row(50, 51, 52)), record("b", row(50, 51, 52), findings=(slow,)))
    assert "spark2: doctor finding gpu.slow_state (GEMV 71 GB/s)" in said


def test_a_busy_client_failed_requests_and_noise_are_flagged() -> None:
    doubtful = row(50, 70, 90, errors=1, client_cpu_share=0.97)
    said = flags(record("a", row(50, 51, 52)), record("b", doubtful))
    assert "the load client used 97% of a core" in said
    assert "1 of 3 requests failed" in said
    assert "noisy: the rounds differ by 57% of their median" in said


def test_node_samples_fold_to_extremes_and_differences() -> None:
    first = NodeSample(
        node="n", rank=1, unix_s=1, sm_clock_mhz=2400, memory_available_bytes=9, engram_rows=100
    )
    last = NodeSample(
        node="n", rank=1, unix_s=2, sm_clock_mhz=2100, memory_available_bytes=7, engram_rows=350
    )
    (folded,) = during((first, last))
    assert (folded.sm_clock_low_mhz, folded.sm_clock_high_mhz) == (2100, 2400)
    assert (folded.memory_low_bytes, folded.engram_rows, folded.power_high_w) == (7, 250, None)
    (restarted,) = during((last, first))
    assert restarted.engram_rows is None


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA GB10", "GB10"),
        ("DGX Spark", "GB10"),
        ("ASUS Ascent GX10", "GB10"),
        ("NVIDIA RTX PRO 6000 Blackwell", "RTX PRO 6000"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
    ],
)
def test_hardware_names(reported: str, name: str) -> None:
    assert hardware_name(reported) == name


def test_format_names() -> None:
    assert {format_name(name) for name in ("native", "MXFP4 + FP8", "fp8 dense, fp4 experts")} == {"native"}
    assert format_name("exl3 4.0bpw") == "EXL3 4.0"
    assert format_name("NVFP4") == "NVFP4"


def test_published_tables_stand_beside_ours_as_theirs() -> None:
    theirs = read_published()
    assert {record.origin for record in theirs} == {"theirs"}
    tp3 = next(record for record in theirs if record.name == "MiaAI-Lab TP3")
    assert tp3.rows[0].figure("decode_tok_s").median == 51.0  # type: ignore[union-attr]
    comparison = compare([record("ours", row(48, 49, 50)), *theirs])
    ranked = [ranking for ranking in comparison.rankings if ranking.placed[0].entry.row.streams == 1]
    names = {placed.entry.record.name for ranking in ranked for placed in ranking.placed}
    assert names >= {"ours", "MiaAI-Lab TP3", "independent TP3 user, decode"}
    said = " ".join(flag for ranking in ranked for placed in ranking.placed for flag in placed.flags)
    assert "a single run" in said
    assert "the prompt length is not stated" in said
    hardware = [reason for refusal in comparison.refusals for reason in refusal.reasons]
    assert any(reason.text == "3 × GB10 against 4 × GB10" for reason in hardware)


def test_a_wrong_published_file_is_explained(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("published") / "tables.yaml"
    path.write_text(PACKAGED.read_text().replace("values: [51.0, 75.1, 85.4]", "values: [51.0]"))
    with pytest.raises(
        ConfigError, match=r"tables\.0: .*prose decode_tok_s has 1 values, the table 3 columns"
    ):
        read_published(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_published(path.with_name("missing.yaml"))


def test_exports_name_every_figure() -> None:
    ours = record("ours", row(50, 51, 52), row(4000, 4100, 4200, measure=Measure.PREFILL))
    lines = csv_text([ours]).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("decode_tok_s,tok/s,51.0,50.0,52.0,3")
    text = markdown(ours)
    assert "| prose | 1 | cold | 512 | 256 | 51.0 (50.0–52.0) |" in text
    assert "3 × GB10" in text

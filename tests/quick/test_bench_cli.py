"""`bench compare` on the command line: data, exit codes, reports, messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from orchestrator.bench import store
from orchestrator.bench.cli import Choices, Emit, bench_app
from orchestrator.bench.options import Options, quick
from orchestrator.bench.record import Cache, Record
from orchestrator.cli import _is_lab, app
from tests.quick.test_bench_compare import record, row


def compare(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(
        app, ["bench", "compare", *arguments], env={"XDG_STATE_HOME": str(folder), "COLUMNS": "200"}
    )
    return done.exit_code, done.stdout, done.stderr


def kept(folder: Path, *records: Record) -> list[str]:
    return [str(store.keep(one, folder / "sparkyard" / "bench")) for one in records]


def test_records_are_compared_by_file_or_by_id(tmp_path: Path) -> None:
    slow, fast = record("slow", row(50, 51, 52)), record("fast", row(60, 61, 62))
    files = kept(tmp_path, slow, fast)
    code, out, _err = compare(tmp_path, *files, "--json")
    assert code == 0
    (ranking,) = json.loads(out)["rankings"]
    assert [placed["name"] for placed in ranking["rows"]] == ["fast", "slow"]
    assert ranking["rows"][1]["significant"] is True
    assert json.loads(compare(tmp_path, slow.id, fast.id[:8], "--json")[1]) == json.loads(out)


def test_nothing_to_rank_is_undetermined_with_the_reason(tmp_path: Path) -> None:
    files = kept(tmp_path, record("cold", row(50, 51, 52)), record("warm", row(90, 91, 92, cache=Cache.WARM)))
    code, out, _err = compare(tmp_path, *files)
    assert code == 3
    assert "Nothing here may be ranked." in out
    assert "cache: cold against warm prefix cache" in out


def test_a_report_has_tables_and_plots(tmp_path: Path) -> None:
    files = kept(
        tmp_path, record("a", row(50, 51, 52), row(80, 81, 82, streams=4)), record("b", row(60, 61, 62))
    )
    report = tmp_path / "report"
    assert compare(tmp_path, *files, "--theirs", "--report", str(report))[0] == 0
    assert (report / "decode.png").read_bytes().startswith(b"\x89PNG")
    text = (report / "decode.svg").read_text()
    assert "a: prose" in text
    assert "MiaAI-Lab TP3 (theirs): prose" in text
    assert "decode_tok_s" in (report / "bench.csv").read_text()
    assert (report / "prefill.svg").exists()
    assert not [path.name for path in report.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "name: Field required"),
        ("not json", "Invalid JSON"),
        ('{"schema": "sparkyard/bench/v2"}', "Input should be 'sparkyard/bench/v1'"),
    ],
)
def test_a_damaged_record_is_explained(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    code, _out, err = compare(tmp_path, str(path), str(path))
    assert code == 2
    assert message in err
    assert "record.json" in err


def test_one_record_or_an_unknown_one_is_a_usage_error(tmp_path: Path) -> None:
    (file,) = kept(tmp_path, record("a", row(50, 51, 52)))
    assert "1 record given, two or more are needed" in compare(tmp_path, file)[2]
    code, _out, err = compare(tmp_path, file, "ffffff")
    assert code == 2
    assert "ffffff: no file and no stored record begins so" in err


@pytest.mark.parametrize(
    ("words", "small"), [((), True), (("--profile", "lab"), True), (("--cluster", "other.yaml"), False)]
)
def test_the_lab_is_measured_at_small_sizes_however_it_is_named(
    tmp_path: Path, words: tuple[str, ...], *, small: bool
) -> None:
    lab = tmp_path / "sparkyard" / "lab" / "cluster.yaml"
    lab.parent.mkdir(parents=True)
    lab.touch()
    asked: list[Options] = []

    async def measured(options: Options, _choices: Choices, _emit: Emit) -> Record:
        asked.append(options)
        return record("r", row(50, 51, 52))

    def fail(error: Exception, **_: object) -> NoReturn:
        raise error

    tried = bench_app(measured, _is_lab, fail)
    environment = {"XDG_STATE_HOME": str(tmp_path), "SPARKYARD_CLUSTER": str(tmp_path / "none.yaml")}
    assert CliRunner().invoke(tried, [*words], env=environment).exit_code == 0
    assert asked == [quick() if small else Options()]

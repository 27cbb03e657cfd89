"""The lab with real SGLang: one cycle that leaves nothing, and one that serves real clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.source import LoadPlan, StreamPlan, local
from orchestrator.lab.place import NODES
from tests.reallab import CYCLE_TIMEOUT_S, call, leftovers

BENCH_TIMEOUT_S = 360
"""Against a hang. Four minutes are promised on idle cores; the seconds it took are printed."""
KINDS = {"prose", "code", "structured", "json", "counting", "reasoning"}
LEAST_PROMPTS = 20
pytestmark = pytest.mark.timeout(900)


def test_once_proves_the_answers_and_leaves_nothing(tmp_path: Path) -> None:
    done = call(tmp_path, "lab", "--once", "--json", timeout_s=CYCLE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    data = json.loads(done.stdout)
    assert data["schema"] == "sparkyard/lab/v1"
    assert data["engine"] == "sglang 0.5.23"
    assert (data["tp"], data["ranks"]) == (3, 3)
    assert data["tokens_equal"] is True
    assert data["prompts"] >= LEAST_PROMPTS
    assert data["engram_rows_read"] > 0
    assert data["setup_s"] >= 0
    assert data["ready_s"] > 0
    assert leftovers(tmp_path) == []
    mounts = Path("/proc/self/mounts").read_text()
    assert str(tmp_path) not in mounts
    print(f"setup {data['setup_s']} s, ready {data['ready_s']} s, {data['comparison']}")


@pytest.fixture(scope="module")
def client(served: Path) -> openai.OpenAI:
    status = json.loads(call(served, "status", "--json").stdout)
    assert status["serving"]
    return openai.OpenAI(base_url=status["url"], api_key="none", timeout=60)


def test_status_logs_and_smoke_from_another_shell(served: Path) -> None:
    done = call(served, "status", "--json")
    status = json.loads(done.stdout)
    assert done.returncode == 0
    assert [rank["node"] for rank in status["ranks"]] == list(NODES)
    assert all(rank["store"] for rank in status["ranks"])
    assert call(served, "status").returncode == 0
    logs = call(served, "logs", "--lines", "5")
    assert logs.returncode == 0
    assert {line.split(" │ ")[0] for line in logs.stdout.splitlines()} == {"rank 0", "rank 1", "rank 2"}
    smoke = call(served, "smoke", "--json")
    assert smoke.returncode == 0
    assert all(item["ok"] for item in json.loads(smoke.stdout)["items"])


def test_doctor_finds_no_error_on_the_lab(served: Path) -> None:
    done = call(served, "doctor", "--json")
    assert done.returncode == 0, done.stdout[-2000:]
    found = json.loads(done.stdout)
    assert found["counts"]["error"] == 0


def test_up_again_plans_nothing(served: Path) -> None:
    done = call(served, "up", "--json")
    assert (done.returncode, json.loads(done.stdout)["stages"]) == (0, [])


def test_the_openai_client_chats_and_streams(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me about the yard."}]
    answer = client.chat.completions.create(model="lab-v41", messages=messages, max_tokens=12, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    stream = client.chat.completions.create(
        model="lab-v41", messages=messages, max_tokens=12, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content


def test_the_openai_client_gets_the_right_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="lab-v41", prompt="word " * 4000, max_tokens=1)


def measured(state: Path, *words: str) -> dict[str, Any]:
    """Everything at small sizes."""
    done = call(state, "bench", "--profile", "lab", "--json", *words, timeout_s=BENCH_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    record: dict[str, Any] = json.loads(done.stdout)
    print(f"bench: {record['ended_unix_s'] - record['started_unix_s']:.0f} s, noisy: {record['noisy']}")
    return record


def test_bench_knows_what_it_measured_and_agrees_with_itself(served: Path, tmp_path: Path) -> None:
    first, second = measured(served, "--report", str(tmp_path / "report")), measured(served)
    known = first["provenance"]
    assert (known["tp"], len(known["rank_specs"]), known["engine_version"]) == (3, 3, "0.5.23")
    assert known["boot_id"] == second["provenance"]["boot_id"]
    assert known["hardware"] == [{"name": "CPU", "count": 3}]
    assert first["method"]["load_from"] == NODES[-1]
    decode = [row for row in first["rows"] if row["measure"] == "decode"]
    assert {row["streams"] for row in decode if row["kind"] == "prose"} >= {1, 2, 4, 8, 16}
    assert {row["kind"] for row in decode} == KINDS
    assert {row["measure"] for row in first["rows"]} == {
        "decode",
        "prefill",
        "needle",
        "chat-behind-prefill",
        "agent-chain",
    }
    assert {row["cache"] for row in first["rows"] if row["measure"] == "prefill"} == {"cold", "warm"}
    assert all(row["errors"] == 0 for row in first["rows"])
    assert first["capacity"]["breaks_first"] or first["capacity"]["bounded_by"] == "limit"
    planned = len(KINDS) + 4  # the search for the capacity may add rows after these
    again = [row for row in second["rows"] if row["measure"] == "decode"]
    assert [row["prompts_sha256"] for row in decode[:planned]] == [
        row["prompts_sha256"] for row in again[:planned]
    ]
    assert [rank["rank"] for rank in first["steps"]["ranks"]] == [0, 1, 2]
    assert all(rank["engram_rows_per_step"] > 0 for rank in first["steps"]["ranks"])
    assert {node["node"] for node in first["nodes"]} == set(NODES)
    assert all(node["foreign_cores"] is not None and node["engram_rows"] > 0 for node in first["nodes"])
    assert (tmp_path / "report" / "decode.png").read_bytes().startswith(b"\x89PNG")
    assert ": prose" in (tmp_path / "report" / "decode.svg").read_text()
    files = sorted((served / "sparkyard" / "bench").glob("*.json"))
    compared = json.loads(call(served, "bench", "compare", *map(str, files), "--json").stdout)
    assert len(compared["rankings"]) >= len(decode)
    for ranking in compared["rankings"]:
        apart = any(row["significant"] for row in ranking["rows"])
        print(ranking["title"], [(row["median"], row["low"], row["high"]) for row in ranking["rows"]], apart)
        assert not apart or first["noisy"] or second["noisy"], ranking


def test_bench_and_the_openai_client_count_the_same_tokens(client: openai.OpenAI) -> None:
    body = {
        "model": "lab-v41",
        "messages": [{"role": "user", "content": "How many rows has the yard?"}],
        "max_tokens": 12,
        "temperature": 0,
    }
    url = f"{str(client.base_url).rstrip('/')}/chat/completions"
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}

    async def ours() -> Sample:
        async with local() as source:
            plan = LoadPlan(url, (StreamPlan((streamed,)),), timeout_s=60.0)
            return (await source.run(plan, lambda _seen, _at_s: None)).samples[0]

    sample = asyncio.run(ours())
    theirs = client.chat.completions.create(**body)
    assert theirs.usage is not None
    assert (sample.prompt_tokens, sample.completion_tokens) == (
        theirs.usage.prompt_tokens,
        theirs.usage.completion_tokens,
    )
    assert sample.text == theirs.choices[0].message.content


def test_stop_and_serve_again(served: Path) -> None:
    done = call(served, "stop", "--json")
    assert done.returncode == 0, done.stdout
    assert call(served, "status").returncode == 1
    assert call(served, "smoke").returncode in {1, 3}
    again = call(served, "serve", "--json", timeout_s=CYCLE_TIMEOUT_S)
    assert again.returncode == 0, again.stdout

"""The exporter: declared series only, nothing that others export, absent where nothing is known."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import ConfigError
from orchestrator.view.metrics import registry
from orchestrator.view.series import ALL, BY_NAME
from orchestrator.view.state import State, fold_all
from orchestrator.watch.exporter import serve_metrics, targets
from tests import watched
from tests.watched import STORIES, cluster, profile, story, told


def page(state: State, now_unix_s: float) -> str:
    return generate_latest(registry(lambda: (state, now_unix_s))).decode()


def declared(name: str) -> tuple[str, ...]:
    """Labels in the declared order; the page has them in alphabetical order."""
    return BY_NAME[name if name in BY_NAME else name.rpartition("_")[0]].labels


def values(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for row in family.samples:
            found.setdefault(row.name, {})[
                tuple(row.labels[label] for label in declared(row.name))
                + ((row.labels["le"],) if "le" in row.labels else ())
            ] = row.value
    return found


@pytest.mark.parametrize("name", sorted(STORIES))
def test_only_declared_series_with_their_labels(name: str) -> None:
    told_story = STORIES[name]()
    for family in text_string_to_metric_families(page(told_story.state(), told_story.now_unix_s)):
        full = family.name + ("_total" if family.type == "counter" else "")
        assert family.documentation == BY_NAME[full].help
        for row in family.samples:
            assert set(row.labels) - {"le"} == set(BY_NAME[full].labels), row


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
@pytest.mark.parametrize("name", sorted(STORIES))
def test_promtool_finds_no_fault(name: str) -> None:
    told_story = STORIES[name]()
    text = page(told_story.state(), told_story.now_unix_s)
    ran = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_nothing_that_sglang_or_node_exporter_exports() -> None:
    assert all(series.name.startswith("sparkyard_") for series in ALL)
    text = page(watched.serving().state(), watched.serving().now_unix_s)
    assert {name.split("_")[0] for name in values(text)} == {"sparkyard"}


def test_a_silent_node_has_no_values_but_its_silence() -> None:
    told_story = watched.down()
    found = values(page(told_story.state(), told_story.now_unix_s))
    assert found["sparkyard_node_up"] == {("spark-1",): 1.0, ("spark-2",): 0.0, ("spark-3",): 1.0}
    with_node = {name for name, rows in found.items() for labels in rows if "spark-2" in labels[:2]}
    assert with_node == {"sparkyard_node_up", "sparkyard_node_connections_total"}


def test_counters_continue_where_the_nodes_have_them_after_a_restart_of_the_watch() -> None:
    lines = told(40)
    whole = story(lines)
    after = story(lines[60:])  # a watch that began in the middle
    for name in ("sparkyard_engram_rows_total", "sparkyard_engram_batch_seconds_count"):
        one = values(page(whole.state(), whole.now_unix_s))[name]
        assert one == values(page(after.state(), after.now_unix_s))[name]


def test_values_of_a_degraded_service() -> None:
    told_story = watched.degraded()
    found = values(page(told_story.state(), told_story.now_unix_s))
    assert found["sparkyard_link_up"]["spark-2", "enP2p1s0f0np0", "p0"] == 0.0
    assert found["sparkyard_link_halves_up"]["spark-2", "p0"] == 1.0
    assert found["sparkyard_rail_probe_bytes_per_second"][
        "spark-2", "enp1s0f1np1", "spark-2"
    ] == pytest.approx(13.1e9 / 8)
    assert found["sparkyard_engram_read_skew_ratio"][watched.NAME, "spark-3", "2"] == pytest.approx(3.2)
    assert found["sparkyard_findings"]["error",] == 1.0
    assert found["sparkyard_deployment_state"][watched.NAME, "degraded"] == 1.0


def test_the_histogram_is_cumulative_and_ends_with_all() -> None:
    told_story = watched.serving()
    rows = values(page(told_story.state(), told_story.now_unix_s))
    buckets = [
        count
        for labels, count in rows["sparkyard_engram_batch_seconds_bucket"].items()
        if "spark-1" in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == rows["sparkyard_engram_batch_seconds_count"][watched.NAME, "spark-1", "0"]


def test_a_scrape_of_four_and_of_sixty_four_nodes_is_bounded_in_size() -> None:
    for nodes, lines_max in ((4, 700), (64, 10_000)):
        told_story = watched.serving(nodes, 8)
        text = page(told_story.state(), told_story.now_unix_s)
        assert len(text.splitlines()) < lines_max


def test_targets_are_those_that_prometheus_on_the_head_can_reach() -> None:
    assert [row["targets"] for row in targets(profile(), cluster())] == [["127.0.0.1:30000"]]
    lab = cluster().model_copy(
        update={
            "nodes": tuple(
                node.model_copy(update={"address": "127.0.0.1", "port_offset": 40 * index})
                for index, node in enumerate(cluster().nodes)
            )
        }
    )
    assert [row["targets"][0] for row in targets(profile(), lab)] == [
        "127.0.0.1:30000", "127.0.0.1:30040", "127.0.0.1:30080",
    ]  # fmt: skip


async def _served(token: str | None, paths: list[tuple[str, str | None]]) -> list[tuple[int, str]]:
    told_story = watched.serving(ticks=4)
    state = told_story.state()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_metrics(
            lambda: (state, told_story.now_unix_s),
            "127.0.0.1",
            0,
            ranks=targets(profile(), cluster()),
            token=token,
            bound=bound.set_result,
        )
    )
    port = await asyncio.wait_for(bound, 5)

    def get(path: str, given: str | None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own loopback address
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        return [await asyncio.to_thread(get, path, given) for path, given in paths]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_exporter_serves_metrics_and_discovery_and_nothing_else() -> None:
    metrics, discovery, other = asyncio.run(
        _served(None, [("/metrics", None), ("/sd/ranks", None), ("/", None)])
    )
    assert metrics[0] == 200
    assert 'sparkyard_node_up{node="spark-1"} 1.0' in metrics[1]
    assert json.loads(discovery[1])[0]["labels"]["rank"] == "0"
    assert other[0] == 404


def test_a_token_is_asked_for_and_held_to() -> None:
    found = asyncio.run(
        _served("secret", [("/metrics", None), ("/metrics", "wrong"), ("/metrics", "secret")])
    )
    assert [status for status, _ in found] == [401, 401, 200]


def test_beyond_loopback_needs_a_token() -> None:
    async def attempt() -> None:
        await serve_metrics(lambda: (watched.serving(ticks=1).state(), 0.0), "0.0.0.0", 0, ranks=[])

    with pytest.raises(ConfigError, match="needs a token file"):
        asyncio.run(attempt())


def test_the_state_grows_no_further_than_its_bounds() -> None:
    lines = told(400)
    state = fold_all(story(lines).state(), lines[:0])
    for node in state.nodes.values():
        assert len(node.available) <= 120
        for link in node.links:
            assert len(link.history) <= 120
            assert len(link.peaks) <= 15
        for rank in node.ranks:
            assert len(rank.window) <= 30
    assert state.engine is not None
    assert len(state.engine.window) <= 32

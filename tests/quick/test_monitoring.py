"""Rules, dashboards and documents of docs/monitoring: checked by promtool, and run against a real Prometheus."""

from __future__ import annotations

import http.server
import json
import re
import runpy
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.view.metrics import registry
from orchestrator.view.series import ALL
from orchestrator.watch.exporter import make_exporter
from tests import watched
from tests.prometheus import MONITORING, free_port, needs_prometheus, node_exporter, panels, prometheus

PAGE = Path("tests/cases/sglang-metrics.txt")
RULES = MONITORING / "rules" / "sparkyard.yaml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", str(RULES)),
        ("test", "rules", str(MONITORING / "rules" / "rules_test.yaml")),
        ("check", "config", str(MONITORING / "prometheus.yaml")),
    ],
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    ran = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_case_that_fires_one_that_does_not_and_a_runbook() -> None:
    cases = yaml.safe_load((MONITORING / "rules" / "rules_test.yaml").read_text(encoding="utf-8"))["tests"]
    wanted: dict[str, set[bool]] = {}
    for case in cases:
        for test in case["alert_rule_test"]:
            wanted.setdefault(test["alertname"], set()).add(bool(test["exp_alerts"]))
    headings = {
        line.removeprefix("## ").lower()
        for line in (MONITORING / "runbooks.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("## ")
    }
    alerts = [rule for rule in rules() if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == set(wanted)
    assert all(found == {True, False} for found in wanted.values())
    for rule in alerts:
        assert rule["annotations"]["runbook_url"].partition("#")[2] in headings
        assert rule["labels"]["severity"] in {"page", "warn"}
    assert headings == {rule["alert"].lower() for rule in alerts}


def test_rules_and_dashboards_name_only_series_that_exist() -> None:
    ours = {series.name for series in ALL} | {
        f"{series.name}_{end}"
        for series in ALL
        if series.kind == "histogram"
        for end in ("bucket", "sum", "count")
    }
    theirs = {
        row.name
        for family in text_string_to_metric_families(PAGE.read_text(encoding="utf-8"))
        for row in family.samples
    }
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in [rule["expr"] for rule in rules()] + [query for _, _, query in panels()]:
        for name in re.findall(r"\b(?:sparkyard|sglang)[:_][a-z0-9_:]+", expression):
            assert name in ours | theirs | recorded, (name, expression)


def test_the_stored_dashboards_are_what_the_script_makes() -> None:
    script = runpy.run_path(str(MONITORING / "dashboards.py"))
    for name in script["ALL"]:
        stored = (MONITORING / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
        assert stored == script["build"](name), "run: python docs/monitoring/dashboards.py"


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    for path in (MONITORING / "dashboards").glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        ids = [panel["id"] for panel in document["panels"]]
        assert len(ids) == len(set(ids))
        cells: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            at = panel["gridPos"]
            covered = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not covered & cells, (path.name, panel["title"])
            assert at["x"] + at["w"] <= 24
            cells |= covered


def test_no_listener_of_the_compose_file_is_open_to_the_network() -> None:
    document = yaml.safe_load((MONITORING / "compose.yaml").read_text(encoding="utf-8"))
    text = json.dumps(document)
    assert "0.0.0.0" not in text
    assert "ports" not in text
    assert text.count("127.0.0.1") == 3


@contextmanager
def engine_page() -> Iterator[int]:
    """A real engine's page, served as the engine serves it."""
    # As Prometheus 2 gets it: OpenMetrics with escaped names, and with the plug-in's own counters on it.
    body = PAGE.read_bytes().replace(b"sglang:", b"sglang_") + (
        b'# TYPE sparkyard_engram_errors counter\nsparkyard_engram_errors_total{rank="0"} 0.0\n'
    )

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@needs_prometheus
def test_every_query_of_every_dashboard_has_data_in_a_real_prometheus(tmp_path: Path) -> None:
    story = watched.serving()
    state = story.state()
    with engine_page() as page, node_exporter() as host:
        labels = {"deployment": watched.NAME, "node": "spark-1", "rank": "0"}
        ranks = [{"targets": [f"127.0.0.1:{page}"], "labels": labels}]
        source = make_exporter(lambda: (state, story.now_unix_s), "127.0.0.1", free_port(), ranks, None)
        with source as port, prometheus(tmp_path / "prometheus", port, host) as server:
            server.wait(
                lambda: len(server.query("count_over_time(sglang:num_running_reqs[1m]) > 2")) > 0,
                40,
                "scrapes",
            )
            wanted = [entry for entry in panels() if host or "node_exporter" not in entry[1]]
            empty = [entry for entry in wanted if not server.query(entry[2])]
            assert empty == []
            assert len(wanted) >= 45
            assert not any(name in {"LinkDown", "ServiceDown"} for name, _ in server.alerts())
            names = server.get("label/__name__/values")
            by_job = {
                job: set(server.get("label/__name__/values", **{"match[]": f'{{job="{job}"}}'}))
                for job in ("sparkyard", "sglang", "node")
            }
    scraped = {"up", *(name for name in names if name.startswith("scrape_"))}
    for one, other in (("sparkyard", "sglang"), ("sparkyard", "node"), ("sglang", "node")):
        assert by_job[one] & by_job[other] <= scraped, f"{one} and {other} export the same series"


def test_a_state_that_is_not_known_has_no_series_to_be_wrong_about() -> None:
    story = watched.serving()
    text = b"".join(
        f"{family.name}\n".encode()
        for family in registry(lambda: (story.state(), story.now_unix_s + 999)).collect()
    ).decode()
    assert "sparkyard_link_up" not in text
    assert "sparkyard_node_up" in text

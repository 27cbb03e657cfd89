"""A real Prometheus for tests: started on a free port of loopback, asked over its HTTP API, ended at the end."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

MONITORING = Path(__file__).resolve().parents[1] / "docs" / "monitoring"
START_TIMEOUT_S = 120.0
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian package prometheus)"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **params: str) -> Any:
        url = f"{self._base}/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own loopback address
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def alerts(self, state: str = "firing") -> set[tuple[str, str]]:
        """(alert, node or cage or rank that it names) of those that fire."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("node", ""))
            for alert in self.get("alerts")["alerts"]
            if alert["state"] == state
        }

    def wait(self, holds: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Seconds until it holds."""
        begin = time.monotonic()
        while time.monotonic() - begin < timeout_s:
            if holds():
                return time.monotonic() - begin
            time.sleep(0.25)
        raise AssertionError(
            f"{what}: not within {timeout_s:.0f} s; alerts: {self.alerts() | self.alerts('pending')}"
        )


@contextmanager
def prometheus(
    folder: Path, exporter_port: int, node_exporter_port: int | None = None
) -> Iterator[Prometheus]:
    """Our own prometheus.yaml and rules with other ports and a pace of one second."""
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(MONITORING / "rules" / "sparkyard.yaml")]
    for job in config["scrape_configs"]:
        job.pop("scrape_interval", None)
        match job["job_name"]:
            case "sparkyard":
                job["static_configs"] = [{"targets": [f"127.0.0.1:{exporter_port}"]}]
            case "sglang":
                job["http_sd_configs"] = [
                    {"url": f"http://127.0.0.1:{exporter_port}/sd/ranks", "refresh_interval": "1s"}
                ]
            case "node":
                targets = [f"127.0.0.1:{node_exporter_port}"] if node_exporter_port else []
                job["static_configs"] = [{"targets": targets}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(port, process, folder)
            yield Prometheus(port)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"prometheus does not start: {(folder / 'log').read_text()[-2000:]}")


@contextmanager
def node_exporter() -> Iterator[int | None]:
    """Debian's node_exporter, where it is installed; None where it is not."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        yield None
        return
    port = free_port()
    process = subprocess.Popen(
        [program, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


def panels() -> list[tuple[str, str, str]]:
    """(dashboard, panel, expression) of every query of every dashboard, with Grafana's variables filled in."""
    found = []
    for path in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "1m")
                found.append((path.stem, panel["title"], re.sub(r"\$\w+", ".*", expression)))
    return found

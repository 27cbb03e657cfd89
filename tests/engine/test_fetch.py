"""`fetch` with the real `huggingface_hub` against a hub on loopback that breaks in the ways hubs break."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REVISION = "d" * 40
REPOSITORY = "sparkyard/lab"
FILES = {
    "config.json": b'{"a": 1}\n',
    "model-00001.safetensors": bytes(range(256)) * 4096,
    "model-00002.safetensors": os.urandom(24 << 20),  # over two of the client's pieces of 10 MB
}


@dataclass
class Hub:
    """What the hub does wrong, and what it was asked for."""

    fail_with: list[int] = field(default_factory=list)
    cut_once: set[str] = field(default_factory=set)
    lie_about: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002
            """Nothing."""

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path == f"/api/models/{REPOSITORY}/revision/{REVISION}":
                self._send(
                    200, json.dumps(_info(hub)).encode(), {"Content-Type": "application/json"}, body=body
                )
                return
            name = path.removeprefix(f"/{REPOSITORY}/resolve/{REVISION}/")
            if name not in FILES:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
                return
            if body and hub.fail_with:
                self._send(hub.fail_with.pop(), b"", {}, body=body)
                return
            data, etag = FILES[name], _etag(name)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
            if not body:
                self._send(200, data, headers, body=False)
                return
            found = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
            begin = int(found[1]) if found else 0
            if found and begin:
                hub.ranges.append(name)
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            piece = data[begin:]
            hub.sent[name] = hub.sent.get(name, 0) + len(piece)
            if name in hub.cut_once:
                hub.cut_once.discard(name)
                self.send_response(200)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(piece)))
                self.end_headers()
                self.wfile.write(piece[: len(piece) * 2 // 3])
                self.close_connection = True
                return
            self._send(206 if begin else 200, piece, headers, body=True)

    return Handler


def _etag(name: str) -> str:
    data = FILES[name]
    if name.endswith(".json"):
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
    return hashlib.sha256(data).hexdigest()


def _info(hub: Hub) -> dict[str, Any]:
    siblings = []
    for name, data in FILES.items():
        entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _etag(name)}
        if not name.endswith(".json"):
            digest = "0" * 64 if name in hub.lie_about else _etag(name)
            entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
        siblings.append(entry)
    return {"id": REPOSITORY, "sha": REVISION, "siblings": siblings}


@contextmanager
def running(hub: Hub) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def fetch(endpoint: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "sparkyard_engine.fetch",
        "--repository",
        REPOSITORY,
        "--revision",
        REVISION,
    ]
    argv += ["--output", str(folder / "out"), "--status", str(folder / "status.json")]
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": str(ROOT / "engine"),
        "HF_HOME": str(folder / "home"),
    }
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_everything_arrives_checked_and_a_second_run_fetches_nothing(tmp_path: Path) -> None:
    hub = Hub()
    with running(hub) as endpoint:
        done = fetch(endpoint, tmp_path)
        assert done.returncode == 0, done.stderr
        assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES
        listed = json.loads((tmp_path / "out" / "sparkyard-digests.json").read_text())
        assert listed["revision"] == REVISION
        assert listed["files"] == {name: _etag(name) for name in FILES}
        assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"
        before = dict(hub.sent)
        assert fetch(endpoint, tmp_path).returncode == 0
        assert hub.sent == before


def test_a_hub_that_fails_and_a_body_that_breaks_off_are_asked_again_with_a_range(tmp_path: Path) -> None:
    hub = Hub(fail_with=[503, 500], cut_once={"model-00002.safetensors"})
    with running(hub) as endpoint:
        done = fetch(endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model-00002.safetensors").read_bytes() == FILES["model-00002.safetensors"]
    assert "model-00002.safetensors" in hub.ranges


def test_a_wrong_digest_is_named_and_the_file_is_gone(tmp_path: Path) -> None:
    with running(Hub(lie_about={"model-00001.safetensors"})) as endpoint:
        done = fetch(endpoint, tmp_path)
    assert done.returncode == 1
    assert "model-00001.safetensors: digest" in done.stderr
    assert not (tmp_path / "out" / "model-00001.safetensors").exists()
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "model-00001" in status["error"]


def test_a_repository_that_is_not_there_says_so_at_once(tmp_path: Path) -> None:
    with running(Hub()) as endpoint:
        argv = [
            sys.executable,
            "-m",
            "sparkyard_engine.fetch",
            "--repository",
            "no/such",
            "--revision",
            REVISION,
        ]
        env = {**os.environ, "HF_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT / "engine")}
        done = subprocess.run(
            [*argv, "--output", str(tmp_path)],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "404" in done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))

"""A hub on loopback that serves one repository and breaks in the ways hubs break. For `huggingface_hub`."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

REVISION = "d" * 40
REPOSITORY = "sparkyard/lab"


@dataclass
class Hub:
    """One repository at one revision: what the hub does wrong, and what it was asked for."""

    files: dict[str, bytes]
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
            if name not in hub.files:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
                return
            if body and hub.fail_with:
                self._send(hub.fail_with.pop(), b"", {}, body=body)
                return
            data = hub.files[name]
            etag = digest(name, data)
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


def digest(name: str, data: bytes) -> str:
    """As a hub names it: SHA-256 of a large file, git's SHA-1 of a small one."""
    if name.endswith(".json"):
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
    return hashlib.sha256(data).hexdigest()


def _info(hub: Hub) -> dict[str, Any]:
    siblings = []
    for name, data in hub.files.items():
        entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": digest(name, data)}
        if not name.endswith(".json"):
            named = "0" * 64 if name in hub.lie_about else digest(name, data)
            entry["lfs"] = {"sha256": named, "size": len(data), "pointerSize": 130}
        siblings.append(entry)
    return {"id": REPOSITORY, "sha": REVISION, "siblings": siblings}


@contextmanager
def running(hub: Hub) -> Iterator[str]:
    """Its address, for `HF_ENDPOINT`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()

"""Small verified files: put over the channel, or offered by one node and fetched by another."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import os
import secrets
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from node_agent.files import sync_folder, write_bytes
from node_agent.home import Home
from node_agent.wire import Refused, Report

CHUNK_BYTES = 1 << 20
OFFER_SOCKET_TIMEOUT_S = 30.0
DIGEST_LENGTH = 64


def _path(home: Home, digest: str) -> Path:
    if len(digest) != DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
        raise Refused(f"{digest[:80]!r} is not a SHA-256 digest", kind="protocol")
    return home.blobs / digest


def put(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Store the bytes of the request, if their digest is right."""
    path = _path(home, args["digest"])
    data = base64.b64decode(args["data"], validate=True)
    seen = hashlib.sha256(data).hexdigest()
    if seen != args["digest"]:
        raise Refused(f"received bytes with digest {seen[:12]}, announced {args['digest'][:12]}")
    if not path.exists():
        write_bytes(path, data)
        return {"bytes_written": len(data)}
    return {"bytes_written": 0}


def offer(home: Home, args: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    """Serve one blob on the fabric address until the request is cancelled; only to who knows the token."""
    path = _path(home, args["digest"])
    if not path.exists():
        raise Refused(f"blob {args['digest'][:12]} is not here")
    token = secrets.token_urlsafe(32)
    wanted = f"Bearer {token}"

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = OFFER_SOCKET_TIMEOUT_S

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                self.send_error(403)
                return
            size = path.stat().st_size
            begin = _range_begin(self.headers.get("Range", ""), size)
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(size - begin))
            self.end_headers()
            with path.open("rb") as file:
                file.seek(begin)
                while data := file.read(CHUNK_BYTES):
                    self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing: standard error belongs to the agent."""

    server = http.server.ThreadingHTTPServer((args["address"], 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        report({"url": f"http://{args['address']}:{server.server_address[1]}/", "token": token})
        stop.wait(float(args["lifetime_s"]))
    finally:
        server.shutdown()
        server.server_close()
    return {}


def _range_begin(header: str, size: int) -> int:
    """First byte asked for; 0 for no or an unusable range."""
    text = header.removeprefix("bytes=").removesuffix("-")
    return int(text) if header and text.isdigit() and int(text) < size else 0


def fetch(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Fetch a blob from the node that offers it; goes on where an earlier try stopped; verified before it counts."""
    path = _path(home, args["digest"])
    if path.exists():
        return {"bytes_written": 0}
    size = int(args["size_bytes"])
    home.blobs.mkdir(parents=True, exist_ok=True)
    free = os.statvfs(home.blobs).f_bavail * os.statvfs(home.blobs).f_frsize
    if free < size:
        raise Refused(f"{home.blobs}: {free:,} bytes free, {size:,} needed; make room and run again")
    part = path.with_suffix(".part")
    begin = part.stat().st_size if part.exists() and part.stat().st_size < size else 0
    headers = {"Authorization": f"Bearer {args['token']}"} | ({"Range": f"bytes={begin}-"} if begin else {})
    request = urllib.request.Request(args["url"], headers=headers)  # noqa: S310 - the URL is the controller's
    written = 0
    try:
        with urllib.request.urlopen(request, timeout=OFFER_SOCKET_TIMEOUT_S) as response:  # noqa: S310
            if response.status != 206:
                begin = 0
            with part.open("r+b" if begin else "wb") as file:
                file.seek(begin)
                while data := response.read(CHUNK_BYTES):
                    file.write(data)
                    written += len(data)
                    report({"done": begin + written, "total": size, "unit": "bytes"})
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
    except (urllib.error.URLError, OSError) as error:
        raise Refused(
            f"fetching from {args['url']}: {error}; what arrived is kept for the next try"
        ) from None
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
    if digest.hexdigest() != args["digest"]:
        part.unlink()
        raise Refused(
            f"what arrived has digest {digest.hexdigest()[:12]}, expected {args['digest'][:12]}; thrown away"
        )
    os.replace(part, path)
    sync_folder(home.blobs)
    return {"bytes_written": written}

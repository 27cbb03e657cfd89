"""Puts one image of this node's engine into a packaged registry on loopback, layers as they are, not compressed again.

Compressing is what makes `docker push` slow: 66 s for 1 GiB where this takes as long as `docker save`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from node_agent.docker import client_path, environment, explain
from node_agent.image import archive
from node_agent.wire import Refused

REGISTRY_TIMEOUT_S = 120.0
PARTIAL = "partial"


@dataclass(frozen=True)
class Published:
    """What the other nodes ask for: manifests of ever more layers, the last one is the image."""

    manifests: tuple[str, ...]
    layers: tuple[archive.Blob, ...]
    config: str

    def to_json(self) -> dict[str, Any]:
        """For the offer."""
        return {
            "manifests": list(self.manifests),
            "layers": [[layer.digest, layer.size_bytes] for layer in self.layers],
            "config": self.config,
        }


class Registry:
    """Client of a registry on loopback."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name
        self.bytes_stored = 0

    def _ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REGISTRY_TIMEOUT_S)
        try:
            connection.request(method, path, body=body, headers=headers or {}, encode_chunked=False)
            response = connection.getresponse()
            return response.status, response.headers, response.read(4096)
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"the registry on 127.0.0.1:{self._port}: {method} {path}: {error}") from None
        finally:
            connection.close()

    def has(self, digest: str) -> bool:
        """Whether the blob is stored."""
        status, _, _ = self._ask("HEAD", f"/v2/{self._name}/blobs/{digest}")
        return bool(status == 200)

    def upload(self, chunks: Iterator[bytes], size: int, digest: str | None) -> str:
        """Store one blob unless it is there; its digest is computed here and checked by the registry."""
        if digest is not None and self.has(digest):
            for _ in chunks:
                pass
            return digest
        seen = hashlib.sha256()

        def counted() -> Iterator[bytes]:
            for chunk in chunks:
                seen.update(chunk)
                yield chunk

        status, headers, words = self._ask(
            "POST", f"/v2/{self._name}/blobs/uploads/", b"", {"Content-Length": "0"}
        )
        place = self._place(status, 202, headers, words)
        length = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        status, headers, words = self._ask("PATCH", place, counted(), length)
        place = self._place(status, 202, headers, words)
        stored = f"sha256:{seen.hexdigest()}"
        sign = "&" if "?" in place else "?"
        status, headers, words = self._ask(
            "PUT", f"{place}{sign}digest={stored}", b"", {"Content-Length": "0"}
        )
        self._place(status, 201, headers, words)
        self.bytes_stored += size
        return stored

    def manifest(self, body: bytes) -> str:
        """Store a manifest; its digest."""
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        status, headers, words = self._ask(
            "PUT", f"/v2/{self._name}/manifests/{digest}", body, {"Content-Type": archive.MANIFEST}
        )
        self._place(status, 201, headers, words)
        return digest

    def _place(self, status: int, wanted: int, headers: Any, words: bytes) -> str:
        if status != wanted:
            raise Refused(
                f"the registry answered {status}, expected {wanted}: {words[:500].decode('utf-8', 'replace')}"
            )
        location = str(headers.get("Location", ""))
        return "/" + location.split("//", 1)[1].partition("/")[2] if "//" in location else location


def publish(
    image: str, registry: Registry, step_bytes: int, report: Callable[[int], None], platform: str | None
) -> Published:
    """Stream the image out of the engine into ``registry``; ``report`` gets the bytes read so far."""
    argv = [client_path(), "save", *(["--platform", platform] if platform else []), image]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as saved:
        if saved.stdout is None or saved.stderr is None:
            raise AssertionError("both were asked for")
        try:
            parsed = archive.read(_Counted(saved.stdout, report), registry.upload)
        except archive.BadArchive as error:
            words = saved.stderr.read(4096).decode("utf-8", "replace").strip()
            raise Refused(f"docker save {image}: {explain(words) if words else error}") from None
        finally:
            saved.stdout.close()
    manifests = []
    for config, layers in archive.steps(parsed, step_bytes):
        registry.upload(iter([config]), len(config), f"sha256:{hashlib.sha256(config).hexdigest()}")
        manifests.append(registry.manifest(archive.manifest(config, layers)))
    return Published(tuple(manifests), parsed.layers, f"sha256:{hashlib.sha256(parsed.config).hexdigest()}")


def platform_of(version: str) -> bool:
    """Whether this engine's `docker save` takes `--platform`: API 1.48 (Docker 28) and later.

    ``version`` is the output of `docker version --format '{{json .Server}}'`.
    """
    api = str(json.loads(version).get("ApiVersion", "0.0")).split(".")
    return (int(api[0]), int(api[1])) >= (1, 48)


class _Counted:
    """Reads of a stream, with the total told."""

    def __init__(self, stream: Any, report: Callable[[int], None]) -> None:
        self._stream: BinaryIO = stream
        self._report = report
        self._bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._bytes += len(data)
        self._report(self._bytes)
        return data

"""The job on the node that has the image: a packaged registry on loopback, and the way to it for the other nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from node_agent.docker import docker
from node_agent.files import write_bytes, write_json
from node_agent.image import publish, status
from node_agent.image.relay import Relay
from node_agent.wire import Refused

REGISTRY_NAMES = ("docker-registry", "registry")
"""The packaged registry: Debian and Ubuntu call it docker-registry, its own project registry."""
READY_TIMEOUT_S = 20.0
OFFER = "offer.json"


def registry_path() -> str:
    """The packaged registry. Refused when there is none."""
    for name in REGISTRY_NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise Refused(
        "no image registry is installed on the node that builds: sudo apt-get install docker-registry"
    )


def main(order: Path, folder: Path) -> int:
    """Publish the image that ``order`` names, then serve it until the others are done or silent."""
    args = json.loads(order.read_bytes())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    report = status.Status(folder / "status.json", "bytes")
    try:
        with _Registry(Path(args["registry"]), folder) as port:
            offer = _publish(args, port, report)
            relay = Relay([[f"127.0.0.1:{port}"]], "", args["token"])
            try:
                for address in args["addresses"]:
                    relay.listen(address, int(args["port"]), open_to_all=False)
                write_json(folder / OFFER, offer)
                report.note("serving")
                _wait(relay, args, stop, report)
                # Before anything ends: nobody shall turn to it any more.
                (folder / OFFER).unlink(missing_ok=True)
            finally:
                relay.close()
    except (Refused, OSError) as error:
        report.fail(str(error))
        return 1
    report.done()
    return 0


def _publish(args: dict[str, Any], port: int, report: status.Status) -> dict[str, Any]:
    registry = publish.Registry(port, args["name"])
    version = docker("version", "--format", "{{json .Server}}", timeout_s=30)
    platform = args["platform"] if publish.platform_of(version) else None
    report.total(int(args["size_bytes"]))
    published = publish.publish(args["image"], registry, int(args["step_bytes"]), report.at, platform)
    return {**published.to_json(), "stored_bytes": registry.bytes_stored}


def _wait(relay: Relay, args: dict[str, Any], stop: threading.Event, report: status.Status) -> None:
    """Serve until every expected node is done, nobody asked for long, or the job is told to stop."""
    readers = set(args["readers"])
    while not stop.wait(0.5):
        report.note(
            f"sent {relay.bytes_to_nodes:,} bytes; done: {', '.join(sorted(relay.finished)) or 'none'}"
        )
        if readers and readers <= relay.finished:
            return
        if time.monotonic() - relay.last_request_s > float(args["idle_s"]):
            return


class _Registry:
    """The packaged registry as a child that dies with this process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> int:
        binary = registry_path()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        config = {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._root)}, "delete": {"enabled": True}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        self._root.mkdir(parents=True, exist_ok=True)
        write_bytes(self._folder / "registry.yml", json.dumps(config).encode())  # JSON is YAML
        with (self._folder / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", binary, "serve", str(self._folder / "registry.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder)},
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2):
                    return port
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.__exit__()
        tail = (self._folder / "registry.log").read_text(errors="replace")[-500:]
        raise Refused(f"the registry did not answer within {READY_TIMEOUT_S:.0f} s: {tail.strip()}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

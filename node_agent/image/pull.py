"""The job on a node that lacks the image: its own engine pulls through a relay, and nodes behind it read along."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from node_agent.docker import client_path, docker, environment, explain
from node_agent.files import write_json
from node_agent.image import identity, status
from node_agent.image.flight import SLOW_SHARE
from node_agent.image.relay import DONE, READY, Relay
from node_agent.wire import Refused

ATTEMPTS = 3
"""Pulls of one step. What makes a second one useful: the engine gives up a layer after five short bodies."""
WRONG_BYTES = ("verification failed", "digest mismatch", "unexpected commit digest")
"""Words of the engine, of either store, for content that does not have its digest."""
FINAL_WORDS = ("no space left on device",)
"""Words of the engine after which another attempt cannot help."""
SHARE_FROM_BYTES = 64 << 20
"""Below this the start of the transfer decides how fast a link looks."""
TOGETHER_S = 20.0
"""How long a node waits for those behind it; without them it starts alone, and they cost another transfer."""
PARTIAL_TAG = "sparkyard-partial"
RESULT = "result.json"


def main(order: Path, folder: Path) -> int:
    """Pull the image that ``order`` names; then serve the nodes behind until they are done or silent."""
    args = json.loads(order.read_bytes())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    report = status.Status(folder / "status.json", "bytes")
    report.total(int(args["missing_bytes"]))
    relay = Relay(args["sources"], args["token"], args["token"])
    failed = ""
    try:
        for address in args["addresses"]:
            relay.listen(address, int(args["port"]), open_to_all=False)
        port = relay.listen("127.0.0.1", 0, open_to_all=True)
        report.note("waiting for the nodes behind")
        _together(relay, args, stop)
        begin = time.monotonic()
        _pull(args, port, relay, report, stop)
        write_json(
            folder / RESULT,
            {
                "bytes_in": relay.bytes_in,
                "seconds": time.monotonic() - begin,
                "bytes_over": _over(relay),
                "warnings": slow_rails(relay.rails()),
            },
        )
        report.note("here")
    except (Refused, OSError) as error:
        failed = str(error)
        faults = sorted({lane.fault for lane in relay.lanes if lane.failing_since_s and lane.fault})
        report.fail("; ".join([failed, *faults]))
    relay.tell(DONE, args["node"])
    _serve_others(relay, args, stop)
    relay.close()
    if failed:
        return 1
    report.done()
    return 0


def _together(relay: Relay, args: dict[str, Any], stop: threading.Event) -> None:
    """Wait for the nodes behind this one and be announced to the one before: then each layer crosses a link once."""
    end = time.monotonic() + TOGETHER_S
    readers = set(args["readers"])
    while not readers <= relay.ready and time.monotonic() < end and not stop.wait(0.05):
        pass
    while not relay.tell(READY, args["node"]) and time.monotonic() < end and not stop.wait(0.2):
        pass


def _over(relay: Relay) -> dict[str, int]:
    found: dict[str, int] = {}
    for lane in relay.lanes:
        found[lane.host] = found.get(lane.host, 0) + lane.bytes_in
    return found


def slow_rails(rails: dict[str, tuple[int, float, str]]) -> list[str]:
    """What is wrong with the links to one source. Pure.

    Args:
        rails: address of the source -> bytes that came from it, bytes per second, the last fault if it fails now.
    """
    total = sum(size for size, _, _ in rails.values())
    if len(rails) < 2 or total < SHARE_FROM_BYTES:
        return []
    best = max(rate for _, rate, _ in rails.values())
    found = []
    for address, (size, rate, fault) in rails.items():
        if fault:
            found.append(f"the link to {address} fails: {fault}; sparkyard doctor looks at it")
        elif rate < best * SLOW_SHARE:
            found.append(
                f"the link to {address} is slow: {rate / 1e6:.1f} MB/s, another one to the same node has "
                f"{best / 1e6:.1f} MB/s; it brought {size:,} of {total:,} bytes; sparkyard doctor looks at it"
            )
    return found


def _pull(
    args: dict[str, Any], port: int, relay: Relay, report: status.Status, stop: threading.Event
) -> None:
    partial = []
    manifests = args["manifests"]
    for number, digest in enumerate(manifests, start=1):
        reference = f"127.0.0.1:{port}/{args['name']}@{digest}"
        report.note(f"step {number} of {len(manifests)}")
        _attempts(reference, relay, report, stop)
        if number < len(manifests):
            tag = f"{PARTIAL_TAG}:{digest[7:19]}"
            partial.append(tag)
        else:
            tag = args["tag"]
        docker("tag", reference, tag, timeout_s=60)
        docker("rmi", reference, timeout_s=60)
    _check(args)
    for tag in partial:
        docker("rmi", tag, timeout_s=60)


def _attempts(reference: str, relay: Relay, report: status.Status, stop: threading.Event) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        words = _one(reference, relay, report, stop)
        if not words:
            return
        if any(wrong in words for wrong in WRONG_BYTES):
            raise Refused(
                f"docker pull: {words}: bytes arrived that are not the image's, nothing of them was kept; "
                "the published copy on the node that builds is damaged: prune --yes removes it, then build again"
            )
        if attempt == ATTEMPTS or any(final in words for final in FINAL_WORDS):
            raise Refused(f"docker pull: {explain(words)}")


def _one(reference: str, relay: Relay, report: status.Status, stop: threading.Event) -> str:
    """One pull; empty when it is done, else the engine's last words. Refused when told to stop."""
    with subprocess.Popen(
        [client_path(), "pull", "--quiet", reference],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as pulling:
        while True:
            try:
                _, words = pulling.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                report.at(relay.bytes_to_engine)
                if stop.is_set():
                    pulling.kill()
                    raise Refused("told to stop") from None
    report.at(relay.bytes_to_engine)
    return "" if pulling.returncode == 0 else words.decode("utf-8", "replace").strip() or "no word"


def _check(args: dict[str, Any]) -> None:
    """What arrived is what was sent: layers, platform and content label, and the config where the engine tells it."""
    image = identity.parse_all(docker("image", "inspect", args["tag"], timeout_s=60))[0]
    seen = (image.rootfs, image.content, image.platform)
    wanted = (args["rootfs"], args["content"], args["platform"])
    if seen != wanted or image.config not in {None, args["config"]}:
        raise Refused(
            f"the image that arrived is another one: {seen}, config {image.config}, expected {wanted}"
        )


def _serve_others(relay: Relay, args: dict[str, Any], stop: threading.Event) -> None:
    readers = set(args["readers"])
    while not readers <= relay.finished and not stop.wait(0.2):
        if time.monotonic() - relay.last_request_s > float(args["idle_s"]):
            return

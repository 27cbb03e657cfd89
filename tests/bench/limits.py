"""What much of everything costs: `python -m tests.bench.limits [--json]`.

64 simulated nodes, 10,000 findings, a log of 1 GB, 100,000 events: each through the product's own code, in a process of
its own, whose time and peak of memory are measured. Prints figures and the bounds that docs/reliability.md promises;
exits 1 when one is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
LOG_BYTES = 1_000_000_000
FINDINGS = 10_000
EVENTS = 100_000
NODES = 64


@dataclass(frozen=True)
class Bound:
    """What is promised, on two cores."""

    seconds: float
    peak_mib: float


def nodes_up(_: Path) -> str:
    """`build` and `share` of 64 nodes in the simulator: the loop, the plans, the predictions, events."""
    from orchestrator.plan import build, share
    from orchestrator.run import converge
    from tests.clusters import lab_cluster, lab_profile
    from tests.sim import SimWorld, make_goal, open_world

    lab = lab_profile()
    wide = lab.parallel.model_copy(update={"tp": NODES, "padding": None})
    goal = make_goal(lab.model_copy(update={"parallel": wide}), lab_cluster(NODES))
    sim = SimWorld(goal, 1)

    def decide(facts: Any) -> Any:
        return build.decide(goal, facts) or share.decide(goal, facts)

    outcome = asyncio.run(converge(open_world(sim, "bench", strict_conformance=True), decide))
    assert not outcome.failures, outcome.failures
    return f"{len(outcome.stages)} stages, {len(sim.events)} events"


def nodes_watched(_: Path) -> str:
    """Two minutes of samples of 64 nodes, folded, and a scrape of what is left."""
    from prometheus_client import generate_latest

    from orchestrator.view.metrics import registry
    from orchestrator.view.state import empty, fold
    from tests import watched

    state, at_s, samples = empty(watched.profile(NODES), watched.cluster(NODES)), 0.0, watched.told(60, NODES)
    for at_s, happened in samples:
        state = fold(state, happened, at_s)
    text = generate_latest(registry(lambda: (state, at_s)))
    return f"{len(samples)} samples, a page of {len(text):,} bytes"


def findings(_: Path) -> str:
    """A report of 10,000 findings on 64 nodes, as text and as JSON."""
    from orchestrator.checks.check import Yard
    from orchestrator.model.finding import Finding, Severity
    from orchestrator.model.plain import json_line
    from orchestrator.view.doctor import data, report
    from orchestrator.view.terminal import Terminal

    found = [
        Finding(
            check="link.mtu",
            node=f"spark-{number % NODES}",
            link=f"enp{number}",
            severity=(Severity.ERROR, Severity.WARNING, Severity.NOTE)[number % 3],
            measured="1500 \x1b[31m",
            expected="9000",
            evidence="x" * 200,
            remedy="ip link set mtu 9000",
            because_of="" if number % 5 else f"link.mtu@spark-{number % NODES}/enp0",
        )
        for number in range(FINDINGS)
    ]
    yard, out = Yard((), 0.0), io.StringIO()
    report(Terminal(file=out, width=120), yard, found, verbose=True)
    text = json_line(data(yard, found, strict=False))
    assert "\x1b[31m" not in out.getvalue() + text
    return f"{len(out.getvalue()):,} characters, {len(text):,} of JSON"


def log(folder: Path) -> str:
    """A log of 1 GB: the last lines by the agent, the cause by `explain`."""
    from node_agent.files import tail
    from orchestrator.explain.folder import read
    from orchestrator.explain.judge import explain

    line = b"[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 1, #token: 4096, gen throughput (token/s): 21.7\n"
    place = folder / "rank-0"
    place.mkdir()
    with (place / "engine.log").open("wb") as file:
        block = line * 10_000
        for _ in range(LOG_BYTES // len(block)):
            file.write(block)
        file.write(b"torch.OutOfMemoryError: CUDA out of memory\n")
    begin = time.monotonic()
    last = tail(place / "engine.log", 5000, max_bytes=2 << 20)
    causes = explain(read(folder))
    assert last[-1].startswith("torch.OutOfMemoryError")
    assert causes
    return f"{len(last)} lines, cause {causes[0].id}, {time.monotonic() - begin:.3f} s without writing it"


def long_line(folder: Path) -> str:
    """A log that is one line of 1 GB."""
    from node_agent.files import tail

    path = folder / "engine.log"
    with path.open("wb") as file:
        file.truncate(LOG_BYTES)
    return f"{len(tail(path, 5000, max_bytes=2 << 20)[0])} characters kept"


def events(folder: Path) -> str:
    """100,000 events written, read again and folded."""
    from orchestrator.model import event
    from orchestrator.view.log import EventLog
    from orchestrator.view.state import fold, unknown
    from orchestrator.watch.replay import read

    path = folder / "events.jsonl"
    with EventLog(path) as written:
        for number in range(EVENTS):
            written.emit(event.Progress(f"spark-{number % NODES}", "pack", number, EVENTS, "bytes", "note"))
    lines, skipped = read(path)
    state = unknown()
    for at_s, happened in lines:
        state = fold(state, happened, at_s)
    assert (len(lines), skipped) == (EVENTS, 0)
    return f"{path.stat().st_size:,} bytes"


CASES: dict[str, tuple[Callable[[Path], str], Bound]] = {
    "build and share of 64 simulated nodes": (nodes_up, Bound(60, 300)),
    "60 samples of each of 64 nodes, and a scrape": (nodes_watched, Bound(60, 300)),
    "10,000 findings as text and JSON": (findings, Bound(60, 300)),
    "a log of 1 GB: last lines and explain": (log, Bound(60, 200)),
    "a log of one line of 1 GB": (long_line, Bound(5, 100)),
    "100,000 events written, read and folded": (events, Bound(60, 400)),
}


def measured(name: str, answers: Any) -> None:
    """In a process of its own."""
    with tempfile.TemporaryDirectory(prefix="sparkyard-limits-") as folder:
        begin, work = time.monotonic(), CASES[name][0]
        said = work(Path(folder))
        seconds = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers.put({"case": name, "seconds": round(seconds, 2), "peak_mib": round(peak / MIB, 1), "said": said})


def main() -> int:
    """Every case once; 1 when a bound is broken or a case fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    start = multiprocessing.get_context("spawn")
    rows, good = [], True
    for name, (_, bound) in CASES.items():
        answers = start.Queue()
        child = start.Process(target=measured, args=(name, answers))
        child.start()
        row = (
            answers.get(timeout=600)
            if _ended_well(child, answers)
            else {"case": name, "failed": child.exitcode}
        )
        child.join()
        row["bound"] = asdict(bound)
        row["kept"] = (
            "failed" not in row and row["seconds"] <= bound.seconds and row["peak_mib"] <= bound.peak_mib
        )
        good = good and row["kept"]
        rows.append(row)
        if not asked.json:
            figures = f"{row.get('seconds')} s, peak {row.get('peak_mib')} MiB ({row.get('said', 'failed')})"
            sys.stdout.write(f"{name}: {figures}; promised {bound.seconds:g} s, {bound.peak_mib:g} MiB\n")
    if asked.json:
        sys.stdout.write(json.dumps({"schema": "sparkyard/limits/v1", "cases": rows}) + "\n")
    return 0 if good else 1


def _ended_well(child: Any, answers: Any) -> bool:
    while child.is_alive() and answers.empty():
        child.join(0.1)
    return not answers.empty() or child.exitcode == 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m sparkyard_engine.engram.pack`: packs, or verifies, the Engram rows of one rank onto this
machine's drive.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sparkyard_engine.engram.errors import ConfigError, EngramError
from sparkyard_engine.engram.format import encode_header
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.packing import MAX_WORKERS, WORKERS, total_bytes
from sparkyard_engine.engram.packjob import check_store, pack, verify
from sparkyard_engine.engram.plan import plan_store
from sparkyard_engine.engram.sampling import verify_sample
from sparkyard_engine.engram.source import open_checkpoint
from sparkyard_engine.engram.status import JobStatus

EXIT_FINE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses; argparse itself exits with 2."""
    parser = argparse.ArgumentParser(prog="sparkyard_engine.engram.pack", description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder with config.json, index and shards"
    )
    parser.add_argument(
        "--revision", required=True, help="the checkpoint's pinned revision, at most 64 bytes"
    )
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ownership", type=Ownership, choices=list(Ownership), default=Ownership.BALANCED)
    parser.add_argument("--output", type=Path, required=True, help="the store's folder")
    parser.add_argument("--status", type=Path, help="job status file, rewritten twice a second")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help=f"extents in flight, at most {MAX_WORKERS}"
    )
    parser.add_argument("--plan", action="store_true", help="print sizes and ranges, write nothing")
    parser.add_argument(
        "--verify", action="store_true", help="read the store and its source again, write nothing"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="with --verify: only N random rows a layer")
    args = parser.parse_args(argv)
    if not 1 <= args.workers <= MAX_WORKERS:
        parser.error(f"--workers is 1 to {MAX_WORKERS}")
    if args.sample is not None and (args.sample < 1 or not args.verify):
        parser.error("--sample takes a number of rows ≥ 1 and goes with --verify")
    return args


def run(args: argparse.Namespace, status: JobStatus, stop: threading.Event) -> int:
    """One call of the program after its arguments. Raises EngramError or OSError."""
    checkpoint = open_checkpoint(args.checkpoint)
    plan = plan_store(checkpoint, args.revision, args.tp, args.rank, args.ownership)
    for header in plan.headers:
        encode_header(
            header
        )  # a revision or a range list that the header cannot hold is refused before any work
    if args.plan:
        for header in plan.headers:
            sys.stdout.write(
                f"layer {header.layer}: {header.rows} rows, {header.rows * 264 / 2**30:.2f} GiB of rows, "
                f"{header.file_bytes} bytes packed\n"
            )
        sys.stdout.write(
            f"store {plan.identity.store_id}: {plan.row_bytes / 2**30:.2f} GiB of rows, "
            f"{plan.file_bytes / 2**30:.2f} GiB packed\n"
        )
        return EXIT_FINE
    total = total_bytes(plan)
    if args.verify and args.sample:
        found = check_store(plan, args.output)
        checked = verify_sample(args.checkpoint, found, args.output, args.sample)
        status.write("done", checked, checked, f"{checked} sampled rows equal their source")
        return EXIT_FINE
    if args.verify:
        done = verify(checkpoint, plan, args.output, status, args.workers, stop)
    else:
        done = pack(checkpoint, plan, args.output, status, args.workers, stop) is not None
    if not done:
        status.write("failed", 0, total, "interrupted; run again to go on", "interrupted")
        return EXIT_INTERRUPTED
    status.write("done", total, total, f"store {plan.identity.store_id}")
    return EXIT_FINE


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 fine, 1 failed, 2 usage or configuration, 130 interrupted."""
    args = arguments(sys.argv[1:] if argv is None else argv)
    status = JobStatus(args.status, "bytes")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        return run(args, status, stop)
    except ConfigError as wrong:
        return _fail(status, str(wrong), EXIT_USAGE)
    except EngramError as wrong:
        return _fail(status, str(wrong), EXIT_FAILED)
    except OSError as wrong:
        where = f"{wrong.filename}: " if wrong.filename else ""
        return _fail(status, f"{where}{wrong.strerror or wrong}", EXIT_FAILED)


def _fail(status: JobStatus, message: str, code: int) -> int:
    sys.stderr.write(f"pack: {message}\n")
    with contextlib.suppress(OSError):
        status.write("failed", 0, 0, "failed", message)
    return code


if __name__ == "__main__":
    sys.exit(main())

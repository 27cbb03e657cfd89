"""The load client is not the limit: 16 streams of 625 tokens a second from a stand-in, as the client reports them.

    python -m tests.bench.bench_client [--rounds 3] [--json]

Prints the reported rate against the known one, and the client's own CPU share. Exit 1 when it is off by more than 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

from orchestrator.bench.figures import decode_round
from orchestrator.bench.source import LoadPlan, StreamPlan, local

STANDIN = Path(__file__).parents[1] / "standin.py"
STREAMS, RATE, TOKENS = 16, 625.0, 3_000
TOLERANCE = 0.02


async def measure(rounds: int) -> list[dict[str, float]]:
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(STANDIN), "--rate", str(RATE), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        port = json.loads(await server.stdout.readline())["port"]
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        body = {
            "model": "stand-in",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": TOKENS,
            "messages": [{"role": "user", "content": "words to be streamed back"}],
        }
        plan = LoadPlan(url, (StreamPlan((body,)),) * STREAMS, timeout_s=60.0)
        found = []
        async with local() as source:
            for _ in range(rounds):
                result = await source.run(plan, lambda _seen, _at_s: None)
                figures = decode_round(result.samples)
                found.append({**figures, "client_cpu_share": result.cpu_s / result.wall_s})
        return found
    finally:
        server.terminate()
        await server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = asyncio.run(measure(options.rounds))
    known = STREAMS * RATE
    reported = statistics.median(figures["decode_tok_s"] for figures in rounds)
    share = max(figures["client_cpu_share"] for figures in rounds)
    off = reported / known - 1
    if options.json:
        print(
            json.dumps(
                {
                    "known_tok_s": known,
                    "reported_tok_s": reported,
                    "client_cpu_share": share,
                    "rounds": rounds,
                }
            )
        )
    else:
        print(
            f"known {known:,.0f} tok/s, reported {reported:,.1f} ({off:+.2%}), client {share:.0%} of a core"
        )
    return 0 if abs(off) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())

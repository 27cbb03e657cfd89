"""Print the facts of this machine, or of a recording: `python -m node_agent.facts [RECORDING]`."""

from __future__ import annotations

import argparse
import json
import sys

from node_agent.facts import Live, Recorded, collect
from node_agent.facts.source import Source, UnreadableError


def main() -> int:
    """Exit status 2 when the recording cannot be read."""
    parser = argparse.ArgumentParser(description="facts of this node as JSON")
    parser.add_argument("recording", nargs="?", help="a recorded node instead of this machine")
    parser.add_argument("--timeout-s", type=float, default=20.0)
    given = parser.parse_args()
    try:
        source: Source = Recorded.load(given.recording) if given.recording else Live()
    except UnreadableError as error:
        print(f"facts: {error}", file=sys.stderr)
        return 2
    json.dump(collect(source, timeout_s=given.timeout_s), sys.stdout, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())

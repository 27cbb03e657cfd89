"""Print the facts of this machine, or of a recording: `python -m node_agent.facts [PLACE]`.

PLACE is a recording (a JSON file, or a folder with `node.json`), or a folder with pasted command output (`*.txt`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from node_agent.facts import Live, Recorded, collect
from node_agent.facts.pasted import recording_of
from node_agent.facts.source import MAX_FILE_BYTES, RECORDING, Source, UnreadableError

MAX_FILES = 200


def opened(place: Path) -> tuple[Source, tuple[str, ...]]:
    """The source behind a path, and the facts to ask it for (none: all). UnreadableError when it is neither kind."""
    if not place.is_dir() or (place / RECORDING).exists():
        return Recorded.load(str(place)), ()
    found = sorted(path for path in place.iterdir() if path.suffix == ".txt" and path.is_file())[:MAX_FILES]
    texts = {}
    for path in found:
        with path.open("rb") as file:
            texts[path.name] = file.read(8 * MAX_FILE_BYTES).decode("utf-8", "replace")
    recording, facts, unknown = recording_of(texts)
    for name in unknown:
        print(f"facts: {place / name}: not a known kind of output, left out", file=sys.stderr)
    if not facts:
        raise UnreadableError(f"{place}: neither {RECORDING} nor a text file of a known kind")
    return Recorded(recording), facts


def main() -> int:
    """Exit status 2 when the place cannot be read."""
    parser = argparse.ArgumentParser(description="facts of a node as JSON")
    parser.add_argument("place", nargs="?", help="a recorded node instead of this machine")
    parser.add_argument("--timeout-s", type=float, default=20.0)
    given = parser.parse_args()
    only: tuple[str, ...] = ()
    try:
        source: Source = Live()
        if given.place:
            source, only = opened(Path(given.place))
    except (UnreadableError, OSError) as error:
        print(f"facts: {error}", file=sys.stderr)
        return 2
    json.dump(collect(source, timeout_s=given.timeout_s, only=only), sys.stdout, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m sparkyard_engine.guard SPEC.json`. Exit: 0 stopped or ended well, 1 anything else, 2 usage."""

from __future__ import annotations

import sys
from pathlib import Path

from sparkyard_engine import rankspec
from sparkyard_engine.guard.supervise import Guard


def main(arguments: list[str]) -> int:
    """Supervise the engine that the rank spec describes until it has ended."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m sparkyard_engine.guard SPEC.json\n")
        return 2
    try:
        spec = rankspec.load(Path(arguments[0]))
        spec.directory.mkdir(parents=True, exist_ok=True)
        guard = Guard(spec, Path(arguments[0]).absolute())
    except rankspec.RankSpecError as error:
        sys.stderr.write(f"guard: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"guard: cannot use the rank's folder: {error}\n")
        return 2
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

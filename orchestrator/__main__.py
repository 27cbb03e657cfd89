"""`python -m orchestrator`, which `./start.sh` runs."""

from __future__ import annotations

from orchestrator.cli import main

if __name__ == "__main__":
    main()

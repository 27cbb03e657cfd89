"""Reach the checkpoint, and prove that what is reached is the source's."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from node_agent import checkpoint
from node_agent.files import sync_folder, write_json
from node_agent.home import Home
from node_agent.wire import Refused, Report


def attach(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Make the checkpoint readable at this node's own fixed place.

    `own` (this node has the files) and `same-host` (the source is on the same machine: the lab) are links to
    the folder. A network mount is another mode, refused here until it is asked of a node that has it.
    """
    if args["mode"] not in {"own", "same-host"}:
        raise Refused(
            f"share mode {args['mode']!r} is not available with the runtime 'process'", kind="refused"
        )
    source = Path(args["path"])
    if not (source / checkpoint.INDEX).is_file():
        raise Refused(f"{source} has no {checkpoint.INDEX}; check checkpoint.path in the cluster file")
    home.share.mkdir(parents=True, exist_ok=True)
    temporary = home.share / f".checkpoint.{secrets.token_hex(4)}.tmp"
    os.symlink(source, temporary)
    os.replace(temporary, home.checkpoint)
    sync_folder(home.share)
    write_json(
        home.share / "share.json",
        {"mode": args["mode"], "source": args["source"], "path": str(home.checkpoint)},
    )
    return {}


def prove(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Read through the share and record what was read."""
    record = checkpoint.prove(home.checkpoint, args["index_sha256"], int(args["seed"]), int(args["blocks"]))
    write_json(home.share / "proof.json", record)
    return record

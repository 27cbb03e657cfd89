"""Reach the checkpoint, and prove that what is reached is the source's."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from node_agent import checkpoint
from node_agent.files import read_json, sync_folder, write_json
from node_agent.home import Home
from node_agent.nfs import client, server, text
from node_agent.wire import Refused, Report


def export(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Export the checkpoint of this node, read-only, to the named addresses and to nobody else."""
    return server.export(args["path"], list(args["clients"]))


def unexport(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Take the export back."""
    server.unexport(args["path"])
    return {}


def attach(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Make the checkpoint readable at this node's own fixed place.

    `own` (this node has the files) and `same-host` (the source is on the same machine: the lab) are links to
    the folder; `nfs` is a link into a mount, which is read back: what it became without a word is in the answer.
    """
    notes: list[str] = []
    source = Path(args["path"])
    if args["mode"] == "nfs":
        home.share.mkdir(parents=True, exist_ok=True)
        root, inside = (args["folder"], "") if args["folder"] else text.split(args["path"])
        before = read_json(home.share / "share.json") or {}
        again = before.get("options", args["options"]) != args["options"]
        notes = client.attach(home, args["server"], root, args["options"], again=again)
        source = client.mount_point(home) / inside
    if not (source / checkpoint.INDEX).is_file():
        raise Refused(f"{source} has no {checkpoint.INDEX}; check checkpoint.path in the cluster file")
    home.share.mkdir(parents=True, exist_ok=True)
    temporary = home.share / f".checkpoint.{secrets.token_hex(4)}.tmp"
    os.symlink(source, temporary)
    os.replace(temporary, home.checkpoint)
    sync_folder(home.share)
    record = {"mode": args["mode"], "source": args["source"], "path": str(home.checkpoint)}
    if args["mode"] == "nfs":
        record |= {key: args[key] for key in ("server", "options")}
    write_json(home.share / "share.json", record)
    return {"fallbacks": notes, "warnings": [f"the share: {note}" for note in notes]}


def detach(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Forget the checkpoint: unmount, and remove the link and the records. Fine when there is none."""
    client.detach(home)
    for name in ("checkpoint", "share.json", "proof.json"):
        (home.share / name).unlink(missing_ok=True)
    return {}


def facts(home: Home) -> dict[str, Any] | None:
    """The record of the share with what its mount is now; None when there is none. Never hangs on a dead server."""
    record = read_json(home.share / "share.json")
    if record is None or record.get("mode") != "nfs":
        return record
    known = {key: record.get(key, "") for key in ("mode", "source", "path", "server")}
    return {**known, "asked": record.get("options", ""), **client.facts(home, record)}


def prove(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Read through the share and record what was read."""
    record = checkpoint.prove(home.checkpoint, args["index_sha256"], int(args["seed"]), int(args["blocks"]))
    write_json(home.share / "proof.json", record)
    return record

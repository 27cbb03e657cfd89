"""One version for all of sparkyard's own folder on a node: its records, jobs, ranks and their places.

An agent that meets a folder of a later layout refuses before it reads or writes anything in it. A folder without the
file is of layout 1, which 0.1.0 wrote without saying so.
"""

from __future__ import annotations

from pathlib import Path

from node_agent.files import read_json, write_json

NAME = "layout.json"
SCHEMA = "sparkyard/node-layout/v1"
VERSION = 1


def problem(root: Path) -> str:
    """Why this agent must leave the folder alone; empty when it may work in it."""
    place = root / NAME
    if not place.exists():
        return ""
    known = read_json(place) or {}
    version = known.get("layout")
    if known.get("schema") != SCHEMA or not isinstance(version, int):
        return f"{place} is damaged: it should say layout {VERSION}; if nothing else uses this folder, remove the file"
    if version != VERSION:
        return (
            f"{root} has layout {version}, this sparkyard knows {VERSION}: another version was here; go on with that "
            "one, or stop the deployment with it and let this one begin in an empty folder"
        )
    return ""


def mark(root: Path) -> None:
    """Say which layout it is. Before the first change; nothing happens when it is said already."""
    if not (root / NAME).exists():
        write_json(root / NAME, {"schema": SCHEMA, "layout": VERSION})

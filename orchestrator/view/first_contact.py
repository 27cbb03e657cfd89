"""What `init` and `enroll` show to people."""

from __future__ import annotations

from typing import Any

import yaml
from rich.console import Console

from orchestrator.model.plain import clean


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_init(console: Console, data: dict[str, Any]) -> None:
    """Candidates, checkpoints, the cluster file, and what an import could not carry over."""
    for item in data.get("candidates", []):
        _say(console, f"may be a node: {clean(item['name'])} {item['address']} ({item['source']})")
    for item in data.get("checkpoints", []):
        state = (
            f"{item['shards']} shards"
            if item["complete"]
            else f"{item['missing']} of {item['shards']} shards missing"
        )
        _say(console, f"checkpoint: {clean(item['path'])} ({item['layout']}, {state})")
    for item in data.get("carried", []):
        _say(console, f"carried over: {item['name']} → {item['text']}")
    for item in data.get("not_carried", []):
        _say(console, f"not carried over: {item['name']}={clean(item['value'])}: {item['text']}")
    if "cluster" in data:
        _say(console, yaml.safe_dump(data["cluster"], sort_keys=False).rstrip())
    elif not data.get("candidates"):
        _say(
            console,
            "no node found; name them: ./start.sh init spark-1=10.0.0.1 spark-2=10.0.0.2 spark-3=10.0.0.3",
        )
    if "written" in data:
        _say(console, f"written: {data['written']}; next: ./start.sh enroll")


def show_enroll(console: Console, data: dict[str, Any]) -> None:
    """Which nodes have our key now, and which privileged commands will ever run there."""
    for item in data["enrolled"]:
        news = "key installed" if item["key_was_new"] else "key was there"
        _say(
            console, f"{item['node']}: {news}, host key {item['fingerprint']} pinned, Python {item['python']}"
        )
    for item in data["failures"]:
        _say(console, f"failed: {clean(item['message'])}")
    for item in data["rights"]:
        show_rights(console, item)


def show_rights(console: Console, item: dict[str, Any]) -> None:
    """What became of a node's list of rights."""
    match item["state"]:
        case "root":
            _say(console, f"{item['node']}: the agent runs as root there: no list of rights is needed")
        case "installed":
            _say(
                console, f"{item['node']}: {len(item['rights'])} command lines allowed for {item['account']}"
            )
        case "declined":
            some = f"{len(item['missing'])} of {len(item['rights'])} command lines are not allowed"
            _say(console, f"{item['node']}: no rights were installed; {some}: what needs them says so")
        case _:
            _say(console, f"failed: {item['node']}: {clean(item['message'])}")
    if item["note"]:
        _say(console, f"{item['node']}: {clean(item['note'])}")


def show_files(console: Console, node: str, files: list[tuple[str, str]]) -> None:
    """The files as they would be installed, whole."""
    for place, content in files:
        _say(console, f"{node}: {place}:")
        for line in content.splitlines():
            _say(console, f"    {clean(line)}")

"""What `init` and `enroll` show to people."""

from __future__ import annotations

from typing import Any

import yaml
from rich.console import Console

from orchestrator.view.text import clean


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
    _say(
        console,
        "nothing runs with root rights unless you allow it; these commands are the only ones that ever ask for them:",
    )
    for item in data["privileged"]:
        _say(console, f"    {item['command']}: {item['why']}")

"""Counters of the plug-in, by layer in the status file, come to the controller as one set a rank."""

from __future__ import annotations

import json
from pathlib import Path

from node_agent.home import Home
from node_agent.watch import ranks
from orchestrator.model.sample import RankNow


def layer(scale: int) -> dict[str, object]:
    sums = (
        "batches",
        "rows_requested",
        "rows_unique",
        "cache_hits",
        "pages_read",
        "bytes_read",
        "errors",
        "read_s",
    )
    return {
        **dict.fromkeys(sums, scale),
        "latency_bounds_us": [50, 100],
        "latency": [scale, 2 * scale, 0],
    }


def test_the_layers_of_a_rank_are_added(tmp_path: Path) -> None:
    home = Home(tmp_path, "here", "0" * 64)
    folder = home.rank_folder("lab", 1, 2)
    folder.mkdir(parents=True)
    engram = {"rows_requested": 110, "layers": {"1": layer(10), "3": layer(100)}}
    (folder / "status.json").write_text(json.dumps({"phase": "ready", "engram": engram}))
    (found,) = ranks.read(home)
    now = RankNow.model_validate(found)
    assert now.engram is not None
    assert (now.engram.batches, now.engram.rows_requested, now.engram.read_s) == (110, 110, 110.0)
    assert (now.engram.latency_bounds_us, now.engram.latency) == ((50, 100), (110, 220, 0))
    (folder / "status.json").write_text(json.dumps({"phase": "kv", "engram": None}))
    assert RankNow.model_validate(ranks.read(home)[0]).engram is None

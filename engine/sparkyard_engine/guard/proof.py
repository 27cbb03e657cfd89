"""Whether the plug-in really runs in this rank (format `sparkyard/plugin-proof/v1`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sparkyard_engine.rankspec import RankSpec

SCHEMA = "sparkyard/plugin-proof/v1"
FILE = "proof.json"
LIMIT_BYTES = 1 << 20


def missing(spec: RankSpec, proof: Mapping[str, Any] | None, pids: Collection[int]) -> str | None:
    """Why the proof does not hold; None when it does or when the spec asks nothing of the plug-in.

    SGLang logs a failing plug-in and serves without it: heads unpadded, tables in memory. Hence this check.
    `pids` are the processes of the engine's tree.
    """
    if not spec.plugin:
        return None
    if proof is None:
        return f"the engine is ready but {FILE} was not written: the plug-in is not active (see engine.log)"
    expected = {"schema": SCHEMA, "rank": spec.rank, "tp": spec.tp}
    for key, value in expected.items():
        if proof.get(key) != value:
            return f"{FILE}: {key}: expected {value!r}, found {proof.get(key)!r}"
    if proof.get("pid") not in pids:
        return f"{FILE}: pid {proof.get('pid')!r} is no process of this engine"
    asked = spec.plugin.get("engram")
    found = proof.get("engram")
    if isinstance(asked, dict) and (not isinstance(found, dict) or found.get("mode") != asked.get("mode")):
        return f"{FILE}: engram.mode: expected {asked.get('mode')!r}, found {found!r}"
    return None

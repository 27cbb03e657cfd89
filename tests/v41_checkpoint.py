"""A checkpoint of the published size whose files are sparse: real headers, no weights, a few megabytes on disk."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from orchestrator.plan.geometry import SHARDS, TOTAL_BYTES, cited
from orchestrator.plan.tensors import Tensor


def write_sparse(folder: Path) -> None:
    """Write 48 shards, the index with the published total, and nothing else."""
    shards: dict[int, list[Tensor]] = defaultdict(list)
    for each in cited():
        shards[each.shard].append(each.tensor)
    names: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        header, offset = {}, 0
        for tensor in shards[number]:
            end = offset + tensor.bytes
            header[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [offset, end],
            }
            names[tensor.name] = name
            offset = end
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + offset)
    index = {"metadata": {"total_size": TOTAL_BYTES}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

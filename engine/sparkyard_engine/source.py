"""Where a rank's weights come from: its own slice store if that is the right one, else the full checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkyard_engine import padding
from sparkyard_engine.slices import load, manifest
from sparkyard_engine.slices.manifest import Identity, Manifest, SliceError

DRAFT = "mtp."  # names of the draft's tensors; the rest is the main model's


@dataclass(frozen=True, slots=True)
class Slices:
    """The slice store that the rank spec names, and what it has to be."""

    store: Path
    identity: Identity


@dataclass(slots=True)
class Source:
    """One process' weights. `note` says why it is what it is; `padded` counts tensors in padded shapes.

    `slice_bytes` were read from the slice store so far.
    """

    plan: padding.Plan
    slices: Slices | None
    manifest: Manifest | None
    note: str
    padded: dict[str, int] = field(default_factory=dict)
    slice_bytes: int = 0

    @property
    def name(self) -> str:
        """As in the proof."""
        return "checkpoint" if self.manifest is None else "slices"

    def stream(
        self, weights: Iterable[tuple[str, Any]], wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, Any]]:
        """(checkpoint name, tensor in its padded shape). With slices `weights` is never touched: nothing is read."""
        self.padded.clear()
        if self.manifest is None or self.slices is None:
            padder = padding.Padder(self.plan)
            padder.padded = self.padded
            yield from padder.stream(each for each in weights if wanted(each[0]))
            return
        self.slice_bytes += sum(entry.bytes for entry in self.manifest.entries if wanted(entry.name))
        for name, tensor in load.stream(self.slices.store, self.manifest, wanted):
            if self.plan.pads(name) is not None:
                kind = ".".join(name.split(".")[-2:])
                self.padded[kind] = self.padded.get(kind, 0) + 1
            yield name, tensor


def choose(plan: padding.Plan, slices: Slices | None) -> Source:
    """The way that this process takes. A store that is missing, stale or another rank's is named in the note."""
    if slices is None:
        return Source(plan, None, None, "the rank spec names no slice store")
    try:
        found = manifest.load(slices.store, slices.identity)
    except SliceError as error:
        return Source(plan, slices, None, str(error))
    return Source(plan, slices, found, f"{slices.store}: {found.bytes} B")


def is_draft(name: str) -> bool:
    """Whether the tensor belongs to the draft model."""
    return name.startswith(DRAFT)

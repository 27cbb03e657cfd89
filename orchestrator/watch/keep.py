"""The part of `monitor` that acts: a guardian beside the exporter, on the same connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.model.event import Event
from orchestrator.model.sample import Happened
from orchestrator.remote.node import Node
from orchestrator.verbs import Session
from orchestrator.watch import evidence
from orchestrator.watch.feed import Feed
from orchestrator.watch.guardian import Guardian
from orchestrator.watch.policy import Policy

LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How the gang is kept serving."""

    session: Session
    folder: Path
    """Beside `events.jsonl`; evidence goes below it."""
    policy: Policy = field(default_factory=Policy)
    every_s: float = LOOK_EVERY_S
    acts: bool = True
    """False: look, ask canaries and tell; never restart anything."""

    async def __call__(self, feed: Feed, held: Mapping[str, Node]) -> None:
        """Until the session is interrupted. Events go to the feed, and with their reasons to the log of the run."""
        session = self.session
        goal, payloads = session.goal()
        listening = session.emit

        def emit(happened: Happened) -> None:
            feed.put(happened)
            if isinstance(happened, Event):
                listening(happened)

        async def save(why: str) -> str:
            try:
                return str(await evidence.save(held, goal.profile.name, self.folder / "evidence", why))
            except OSError as error:
                return f"nowhere ({error})"

        def gpus() -> dict[str, tuple[float, float]]:
            found = {}
            for name, node in feed.state.nodes.items():
                gpu = node.gpu
                if gpu and gpu.utilization_percent is not None and gpu.power_w is not None:
                    found[name] = (gpu.utilization_percent, gpu.power_w)
            return found

        session.emit = emit
        try:
            async with session.world(payloads, held) as world:
                guardian = Guardian(world, goal, emit, save, self.policy, gpus, acts=self.acts)
                await guardian.run(self.every_s)
            await asyncio.Event().wait()
        finally:
            session.emit = listening

"""`serve --last-good`: what last served as it should, brought back from the nodes' own boot records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import ValidationError

from orchestrator import boots
from orchestrator.errors import ConfigError, SparkyardError
from orchestrator.model.boot import BootRecord, Brought
from orchestrator.model.event import Said
from orchestrator.model.goal import Package
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging, planned


class NothingGoodError(SparkyardError):
    """No boot can be brought back; the text says what was looked for."""


@dataclass(frozen=True, slots=True)
class Good:
    """A boot that every rank proved."""

    deployment: str
    generation: int
    at_unix_s: float
    brought: Brought


def newest(records: Iterable[BootRecord], deployment: str | None) -> Good | None:
    """The newest boot, of `deployment` or of any, whose every rank left its record and names the same goal."""
    boots_: dict[tuple[str, int], list[BootRecord]] = {}
    for record in records:
        if record.proven and record.goal is not None and deployment in (None, record.deployment):
            boots_.setdefault((record.deployment, record.generation), []).append(record)
    found = []
    for (name, generation), ranks in boots_.items():
        goal = ranks[0].goal
        tp = goal.profile.get("parallel", {}).get("tp") if goal else None
        same = all(rank.goal == goal for rank in ranks)
        if goal is not None and same and {rank.rank for rank in ranks} == set(range(tp or 0)):
            at = max(rank.recorded_unix_s for rank in ranks)
            found.append(Good(name, generation, at, goal))
    return max(found, key=lambda good: good.at_unix_s, default=None)


def images(records: Iterable[BootRecord]) -> frozenset[str]:
    """Content labels of the images that the last good boot of each deployment needs."""
    known = tuple(records)
    found = [newest(known, name) for name in {record.deployment for record in known}]
    return frozenset(good.brought.image for good in found if good is not None and good.brought.image)


async def session_of(session: Session, *, any_deployment: bool) -> Session:
    """The session with the profile and the engine package of the last good boot.

    Raises:
        NothingGoodError: there is none.
        ConfigError: this version does not understand the profile that it kept.
        Undetermined: no node answers.
    """
    async with session.world() as world:
        await observe(world)
        records = await boots.read(world)
    good = newest(records, None if any_deployment else session.profile.name)
    if good is None:
        whose = "any deployment" if any_deployment else session.profile.name
        raise NothingGoodError(
            f"no boot of {whose} is recorded as good on all of its nodes: there is nothing to bring back; "
            "sparkyard serve starts the profile as it is"
        )
    try:
        profile = Profile.model_validate(good.brought.profile)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        text = f"profile of {good.deployment}, generation {good.generation}: {where}: {fault['msg']}"
        raise ConfigError([f"{text}; it was kept by another version of sparkyard"]) from None
    at = datetime.fromtimestamp(good.at_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    package = good.brought.package[:12]
    text = f"bringing back {good.deployment} as of generation {good.generation}, proven {at}, engine package {package}"
    session.emit(Said("note", text))
    return replace(
        session, profile=profile, package=Package(good.brought.package, good.brought.package_bytes)
    )


async def serve(session: Session, *, any_deployment: bool, dry_run: bool = False) -> Answer:
    """`serve` of the last good boot, as the next generation; or its plan."""
    found = await session_of(session, any_deployment=any_deployment)
    return await (planned(found, "serve") if dry_run else converging(found, "serve"))

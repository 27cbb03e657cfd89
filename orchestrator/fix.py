"""`doctor --fix`: show each repair with its undo, do what is agreed to, confirm it over the network, look again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.checks.remedies import Remedy
from orchestrator.remote.node import Ask, Node, reply

ASK_TIMEOUT_S = 60.0
REVERT_S = 30.0
CONFIRM_TIMEOUT_S = 20.0  # less than REVERT_S: what cannot be confirmed in time reverts itself


@dataclass(frozen=True, slots=True)
class Shown:
    """A repair as it is shown before it is done."""

    remedy: Remedy
    commands: tuple[str, ...]
    undo: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a repair: `outcome` is done, declined, refused or reverted."""

    shown: Shown
    outcome: str
    detail: str = ""


async def preview(nodes: Mapping[str, Node], remedy: Remedy) -> Shown:
    """What the node would run, and what would take it back."""
    args = {"kind": remedy.kind, "args": remedy.args, "show": True}
    answer = await reply(nodes[remedy.node], Ask("repair", args), timeout_s=ASK_TIMEOUT_S)
    if answer.failure is not None:
        return Shown(remedy, (), "", refused=answer.failure.message)
    return Shown(remedy, tuple(answer.value["commands"]), str(answer.value["undo"]))


async def repair(nodes: Mapping[str, Node], shown: Shown, *, sudo: bool, revert_s: float = REVERT_S) -> Done:
    """Do one repair; what touches the network is kept only when the node answers afterwards."""
    remedy, node = shown.remedy, nodes[shown.remedy.node]
    args = {"kind": remedy.kind, "args": remedy.args, "sudo": sudo, "revert_s": revert_s}
    answer = await reply(node, Ask("repair", args), timeout_s=ASK_TIMEOUT_S)
    if answer.failure is not None:
        return Done(shown, "refused", answer.failure.message)
    token = answer.value.get("token")
    if token is None:
        return Done(shown, "done")
    kept = await reply(
        node, Ask("confirm_repair", {"token": token}), timeout_s=min(CONFIRM_TIMEOUT_S, revert_s)
    )
    if kept.failure is not None:
        text = f"the node could not be reached again: it takes this back within {revert_s:g} s"
        return Done(shown, "reverted", text)
    return Done(shown, "done", remedy.persist and f"to keep it: {remedy.persist}")


async def fix(
    nodes: Mapping[str, Node],
    remedies: tuple[Remedy, ...],
    agree: Callable[[Shown], bool],
    *,
    sudo: bool,
) -> tuple[Done, ...]:
    """One after the other, so that at most one is not yet confirmed. `agree` asks the person, repair by repair."""
    done = []
    for remedy in remedies:
        shown = await preview(nodes, remedy)
        if shown.refused:
            done.append(Done(shown, "refused", shown.refused))
        elif not await asyncio.to_thread(
            agree, shown
        ):  # a person may take long: connections must be kept alive
            done.append(Done(shown, "declined"))
        else:
            done.append(await repair(nodes, shown, sudo=sudo))
    return tuple(done)

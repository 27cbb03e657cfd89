"""The rights that an ordinary account needs on each node: asked of the node, shown, installed, and asked again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from orchestrator.each import each, look
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.model.frozen import Frozen
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Profile
from orchestrator.model.step import Blocked
from orchestrator.plan import share
from orchestrator.plan.sudoers import PLACE, Right, sudoers
from orchestrator.remote.enroll import EnrollError
from orchestrator.remote.node import Ask, Node, reply
from orchestrator.remote.nodes import nodes
from orchestrator.remote.rights import Order, install

ASK_TIMEOUT_S = 60.0
EXPORTS = re.compile(r"# sparkyard: [ -~]*\n/[!-~]* [!-~ ]+\n")
FSTAB = re.compile(
    r"[!-~]+:/[!-~]* /var/lib/sparkyard/nfs nfs4 [!-~]+,nosuid,nodev,bg,nofail,_netdev 0 0 # sparkyard\n"
)
"""Whatever a node answers, nothing else gets into files of root's."""


class Listing(Frozen):
    """What a node's agent lists: its account, and every command line that it may ever need root for."""

    account: str = Field(max_length=64)
    root: bool
    rights: tuple[Right, ...] = Field(max_length=4000)
    exports: str = Field(default="", max_length=100_000)
    fstab: str = Field(default="", max_length=10_000)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be installed on one node."""

    node: str
    listing: Listing
    order: Order

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Every file as (path, content), in the order in which they are written."""
        found = [(PLACE, self.order.sudoers)]
        found += [("/etc/sparkyard/exports", self.order.exports)] if self.order.exports else []
        return found + ([("/etc/fstab, one line", self.order.fstab)] if self.order.fstab else [])


def collect(cluster: Cluster, profile: Profile) -> tuple[dict[str, Listing], dict[str, str], str]:
    """Ask every node. Returns listings, failures by node, and why nothing of the share is among the rights."""
    return asyncio.run(_collect(cluster, profile))


async def _collect(cluster: Cluster, profile: Profile) -> tuple[dict[str, Listing], dict[str, str], str]:
    asked: Mapping[str, Node] = nodes(cluster)
    try:
        facts, failures = await look(asked, {})
        parts, note = shares(Goal(profile, cluster, Package("", 0)), facts) if not failures else ({}, "")
        if failures:
            note = "not every node answered: enroll again for the rights of `share`"
        silent = {failure.node: failure.message for failure in failures}
        answers = await each(
            [name for name in asked if name not in silent],
            lambda name: reply(asked[name], Ask("rights", parts.get(name, {})), timeout_s=ASK_TIMEOUT_S),
        )
    finally:
        await asyncio.gather(*(node.close() for node in asked.values()))
    found: dict[str, Listing] = {}
    for name, answer in answers.items():
        if answer.failure is not None:
            silent[name] = answer.failure.message
            continue
        try:
            found[name] = Listing.model_validate(answer.value)
        except ValidationError as error:
            silent[name] = f"its list of rights is not usable: {error.errors()[0]['msg']}"
    return found, silent, note


def shares(goal: Goal, facts: Any) -> tuple[dict[str, dict[str, Any]], str]:
    """Each node's part in the share; and why there is none."""
    if goal.cluster.checkpoint is None:
        return {}, "the cluster file names no checkpoint: nothing of `share` is among the rights"
    match share.access(goal, facts):
        case Blocked(failures=failures):
            return {}, f"nothing of `share` is among the rights: {failures[0].node} {failures[0].message}"
        case parts:
            return parts, ""


def wanted(node: str, listing: Listing) -> Wanted:
    """The files for one node. ConfigError when the node lists what sudoers cannot say."""
    if (listing.exports and not EXPORTS.fullmatch(listing.exports)) or (
        listing.fstab and not FSTAB.fullmatch(listing.fstab)
    ):
        raise ConfigError([f"{node}: its lines for exports or fstab are not of the form that they must have"])
    text = sudoers(listing.account, listing.rights)
    order = Order(text, listing.exports, listing.fstab, f"{listing.account}\n")
    return Wanted(node, listing, order)


def enroll_rights(
    cluster: Cluster,
    profile: Profile,
    only: set[str] | None,
    agree: Callable[[Wanted], bool],
    ask_password: Callable[[str], str],
) -> list[dict[str, Any]]:
    """One entry a node: its account, the files, `state` (root, installed, declined, failed), and what is missing.

    Nothing is installed that was not agreed to; after an installation the node is asked again.
    """
    listings, failures, note = collect(cluster, profile)
    done: list[dict[str, Any]] = []
    again = False
    for node in cluster.nodes:
        if only is not None and node.name not in only:
            continue
        entry: dict[str, Any] = {"node": node.name, "note": note}
        done.append(entry)
        if node.name in failures:
            entry |= {"state": "failed", "message": failures[node.name]}
            continue
        listing = listings[node.name]
        entry |= {
            "account": listing.account,
            "rights": [right.model_dump(mode="json") for right in listing.rights],
        }
        if listing.root:
            entry |= {"state": "root", "files": {}}
            continue
        try:
            want = wanted(node.name, listing)
            entry["files"] = dict(want.shown)
            if not agree(want):
                entry |= {"state": "declined", "missing": list(listing.missing)}
                continue
            install(node, want.order, ask_password)
        except (EnrollError, ConfigError) as error:
            entry |= {"state": "failed", "message": str(error)}
            continue
        entry["state"] = "installed"
        again = True
    if again:
        listings, failures, _ = collect(cluster, profile)
        for entry in done:
            if entry["state"] == "installed" and (
                entry["node"] in failures or listings[entry["node"]].missing
            ):
                why = failures.get(entry["node"]) or ", ".join(listings[entry["node"]].missing)
                entry |= {"state": "failed", "message": f"installed, but sudo still refuses: {why}"}
    return done

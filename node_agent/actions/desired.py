"""The desired record."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.wire import Refused, Report

AT_REST = ("stopped", "maintenance")
KEYS = ("deployment", "generation", "state", "profile")


def set_desired(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Write the record; a generation never goes back.

    With `only_if_serving` it is refused unless the record says serving now: the watch goes on with what a person
    wants, and never over what a person has stopped in the meantime.
    """
    with _locked(home):
        known = read_json(home.desired) or {}
        same = known.get("deployment") == args["deployment"]
        if same and known.get("generation", 0) > args["generation"]:
            raise Refused(
                f"the desired record is at generation {known['generation']}, asked for {args['generation']}; "
                "another controller was here: run the verb again"
            )
        if args.get("only_if_serving") and same and known.get("state") in AT_REST:
            raise Refused(f"the desired record says {known['state']}: somebody does not want it to serve")
        write_json(home.desired, {**{key: args[key] for key in KEYS}, "why": str(args.get("why", ""))[:1000]})
    return {}


def rest(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Let the deployment rest: `stopped` or `maintenance`. Needs no lease: whoever starts it meanwhile must notice.

    The generation stays. Returns whether the record was changed; it is not when the deployment is not this one.
    """
    state = args["state"]
    if state not in AT_REST:
        raise Refused(f"only {' or '.join(AT_REST)} can be written without the lease, not {state!r}")
    with _locked(home):
        known = read_json(home.desired)
        if known is None or known.get("deployment") != args["deployment"] or known.get("state") == state:
            return {"changed": False}
        write_json(home.desired, {**known, "state": state, "why": str(args.get("why", ""))[:1000]})
    return {"changed": True}


def check_serving(home: Home, deployment: str, generation: int) -> None:
    """Refused unless this node shall serve that generation now: the last word before a rank is started."""
    known = read_json(home.desired) or {}
    if (known.get("deployment"), known.get("generation"), known.get("state")) != (
        deployment,
        generation,
        "serving",
    ):
        raise Refused(
            f"the desired record says {known.get('deployment')} {known.get('state')}, generation "
            f"{known.get('generation')}: a rank of generation {generation} is not started"
        )


@contextmanager
def _locked(home: Home) -> Iterator[None]:
    """Read and write as one, also against the agent of another channel."""
    home.root.mkdir(parents=True, exist_ok=True)
    with (home.root / "desired.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

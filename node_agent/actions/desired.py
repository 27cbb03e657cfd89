"""The desired record."""

from __future__ import annotations

from typing import Any

from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.wire import Refused, Report


def set_desired(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Write the record; a generation never goes back."""
    known = read_json(home.desired)
    if (
        known
        and known.get("deployment") == args["deployment"]
        and known.get("generation", 0) > args["generation"]
    ):
        raise Refused(
            f"the desired record is at generation {known['generation']}, asked for {args['generation']}; "
            "another controller was here: run the verb again"
        )
    write_json(home.desired, {key: args[key] for key in ("deployment", "generation", "state", "profile")})
    return {}

"""Entry of the zipapp: the agent on a channel, or one of the two processes that it starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from node_agent import jobs, layout
from node_agent.actions import ranks
from node_agent.home import Home
from node_agent.image import pull, serve
from node_agent.shell import Shell
from node_agent.wire import Writer

HELLO = "SPARKYARD_AGENT_HELLO"


def main() -> int:
    """``agent.pyz`` serves standard input and output; the others are long work."""
    match sys.argv[1:]:
        case ["run-job", folder]:
            return jobs.run(Path(folder))
        case ["run-rank", folder]:
            return ranks.run(Path(folder))
        case ["image-serve", order, folder]:
            return serve.main(Path(order), Path(folder))
        case ["image-pull", order, folder]:
            return pull.main(Path(order), Path(folder))
        case []:
            return _serve()
    sys.stderr.write(
        "usage: agent.pyz [run-job DIR | run-rank DIR | image-serve ORDER DIR | image-pull ORDER DIR]\n"
    )
    return 2


def _serve() -> int:
    hello = json.loads(os.environ.pop(HELLO))
    recorded = hello.get("recorded")
    home = Home(Path(hello["root"]), hello["node"], hello["sha256"], Path(recorded) if recorded else None)
    # The channel keeps its own descriptor; whatever prints to standard output by mistake cannot break the protocol.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    writer = Writer(channel)
    if why := layout.problem(home.root):
        writer.send({"boot": why})
        return 2
    writer.send({"hello": {"agent": hello["sha256"], "pid": os.getpid(), "python": sys.version.split()[0]}})
    try:
        Shell(home, sys.stdin.buffer, writer).serve()
    except BrokenPipeError:
        return 0
    os._exit(0)  # short work in other threads dies with the channel


if __name__ == "__main__":
    sys.exit(main())

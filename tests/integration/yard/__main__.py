"""`python -m tests.integration.yard`: nodes for tests on one machine. Needs root and `install.sh`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from tests.integration.yard import files, nodes, state, vms
from tests.integration.yard.layout import plan


def main() -> int:
    """0 fine, 1 could not be done, 2 usage."""
    arguments = _parser().parse_args()
    try:
        return int(arguments.verb(arguments))
    except ValueError as error:
        print(f"yard: {error}", file=sys.stderr)
        return 2
    except state.YardError as error:
        print(f"yard: {error}", file=sys.stderr)
        return 1


def _up(arguments: argparse.Namespace) -> int:
    topology = arguments.topology or ("triangle" if arguments.count == 3 else "ring")
    layout = plan(arguments.id, arguments.count, topology)
    where = state.folder(layout.id)
    if (where / "yard.json").exists() and files.read(layout.id) != layout:
        raise state.YardError(f"a yard {layout.id!r} of another shape is up: take it down first")
    (where / "nodes").mkdir(parents=True, exist_ok=True)
    nodes.up(layout)
    if arguments.docker:
        for node in layout.nodes:
            nodes.engine(layout, node)
    print(files.write(layout))
    return 0


def _down(arguments: argparse.Namespace) -> int:
    nodes.down(arguments.id)
    return 0


def _vms(arguments: argparse.Namespace) -> int:
    if arguments.word == "down":
        vms.down(arguments.id)
    else:
        print(vms.up(arguments.id).cluster)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    layout = files.read(arguments.id)
    for node in layout.nodes:
        alive = state.process(state.folder(layout.id), node.name) is not None
        fabric = " ".join(f"{link.interface}={link.address}" for link in node.fabric)
        print(f"{node.name}  {'up' if alive else 'down'}  {node.management}  {fabric}")
    return 0


def _exec(arguments: argparse.Namespace) -> NoReturn:
    layout = files.read(arguments.id)
    command = arguments.command or ["bash"]
    if arguments.where == "controller":
        argv = [*nodes.controller(layout), *command]
    else:
        argv = [*nodes.enter(layout, layout.node(arguments.where)), *command]
    os.execvp(argv[0], argv)  # noqa: S606


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="yard", description=__doc__)
    parser.add_argument("--id", default="yard", help="several yards live side by side under different ids")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    up = verbs.add_parser("up", help="make the nodes that are missing; prints the path of cluster.yaml")
    up.add_argument("count", type=int)
    up.add_argument("--topology", choices=("triangle", "switch", "ring"))
    up.add_argument("--docker", action="store_true", help="one Docker engine a node")
    up.set_defaults(verb=_up)
    down = verbs.add_parser("down", help="take everything back")
    down.set_defaults(verb=_down)
    machines = verbs.add_parser("vms", help="two virtual machines: kernel NFS, systemd, reboot")
    machines.add_argument("word", choices=("up", "down"), nargs="?", default="up")
    machines.set_defaults(verb=_vms)
    status = verbs.add_parser("status", help="which nodes are up, and their addresses")
    status.set_defaults(verb=_status)
    execute = verbs.add_parser("exec", help="run a command in a node, or in the controller's network")
    execute.add_argument("where", help="node name, or `controller`")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    execute.set_defaults(verb=_exec)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The commands `init` and `enroll`."""

from __future__ import annotations

import getpass
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer

from orchestrator import first_contact
from orchestrator.errors import Exit, SparkyardError
from orchestrator.load import default_cluster_path, load_cluster, load_profile
from orchestrator.model.plain import json_line
from orchestrator.rights import Wanted, enroll_rights
from orchestrator.view.first_contact import show_enroll, show_files, show_init
from orchestrator.view.terminal import Terminal

ClusterOption = Annotated[
    Path | None, typer.Option("--cluster", help="Cluster file. Default: ./cluster.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


class Fail(Protocol):
    """Prints an error and exits with its code."""

    def __call__(self, error: SparkyardError, *, as_json: bool) -> NoReturn: ...


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json_line(data) + "\n")


def trust(node: str, fingerprint: str, *, yes: bool) -> bool:
    """Show a host key that was never seen; a person or `--yes` accepts it."""
    typer.echo(f"{node} offers the host key {fingerprint}", err=True)
    return yes or (sys.stdin.isatty() and typer.confirm("is it the node's?", default=False, err=True))


def agree(wanted: Wanted, *, install: bool | None, err: Terminal) -> bool:
    """Show every file whole; `--rights` or a person agrees."""
    show_files(err, wanted.node, wanted.shown)
    if install is not None:
        return install
    question = f"{wanted.node}: install this for {wanted.listing.account}?"
    return sys.stdin.isatty() and typer.confirm(question, default=False, err=True)


def add_first_contact(app: typer.Typer, fail: Fail) -> None:
    """Add both commands to the command line."""

    @app.command()
    def init(
        nodes: Annotated[
            list[str] | None, typer.Argument(help="Nodes as [NAME=][USER@]ADDRESS[:PORT]; head first.")
        ] = None,
        import_env: Annotated[
            Path | None,
            typer.Option("--import-env", help="Take over the .env of the existing start.sh recipe."),
        ] = None,
        user: Annotated[
            str, typer.Option("--user", help="Account on the nodes; empty: the same as here.")
        ] = "",
        root: Annotated[
            str | None,
            typer.Option("--root", help="sparkyard's folder on each node's NVMe. Default: ~/sparkyard."),
        ] = None,
        checkpoint: Annotated[
            str | None, typer.Option("--checkpoint", help="Checkpoint folder on the head.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace a cluster file that is there.")] = False,
        cluster: ClusterOption = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Find nodes and checkpoints and write cluster.yaml. Without nodes: only say what was found."""
        place = cluster or default_cluster_path()
        try:
            data = first_contact.prepare(nodes or [], import_env, user, root, checkpoint)
            if "cluster" in data and not dry_run:
                first_contact.write(data["cluster"], place, force=force)
                data["written"] = str(place)
        except SparkyardError as error:
            fail(error, as_json=as_json)
        if as_json:
            _print_json(data)
        else:
            show_init(Terminal(), data)
        raise SystemExit(int(Exit.FINE))

    @app.command()
    def enroll(
        cluster: ClusterOption = None,
        nodes: Annotated[
            str | None, typer.Option("--nodes", help="Only these nodes, separated by commas.")
        ] = None,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Accept host keys that were never seen.")
        ] = False,
        install: Annotated[
            bool | None,
            typer.Option(
                "--rights/--no-rights",
                help="Install the list of sudo rights without asking, or not at all. Default: show it and ask.",
            ),
        ] = None,
        profile: Annotated[
            str | None,
            typer.Option("--profile", help="Profile whose share the rights are for. Default: tp3 or tp4."),
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Bring sparkyard's own key to the nodes (password once), pin their host keys, write both to cluster.yaml.

        Then show, for each account that is not root, every command line that will ever run as root there, and install
        exactly those as sudoers lines once it is agreed to.
        """
        place = cluster or default_cluster_path()
        try:
            data = first_contact.enroll_all(place, nodes, partial(trust, yes=yes), getpass.getpass)
            if install is not False:
                reached = load_cluster(place)
                served = load_profile(
                    profile or f"deepseek-v4.1-flash-tp{3 if len(reached.nodes) <= 3 else 4}"
                )
                done = {item["node"] for item in data["enrolled"]}
                local = {node.name for node in reached.nodes if node.transport == "local"}
                chosen = {name.strip() for name in nodes.split(",")} if nodes else done | local
                ask = partial(agree, install=install, err=Terminal(stderr=True))
                data["rights"] = enroll_rights(reached, served, chosen & (done | local), ask, getpass.getpass)
        except SparkyardError as error:
            fail(error, as_json=as_json)
        if as_json:
            _print_json(data)
        else:
            show_enroll(Terminal(), data)
        failed = data["failures"] or any(item["state"] == "failed" for item in data["rights"])
        raise SystemExit(int(Exit.FAILED if failed else Exit.FINE))

"""Writes the table of rights into docs/security.md, from what sudoers is made of: `python -m tests.nodes.rights`."""

from __future__ import annotations

from pathlib import Path

from node_agent import privileged, rights
from node_agent.facts import Recorded, cables
from node_agent.facts.smart import CLASS
from orchestrator.plan.sudoers import Right, sudoers
from tests.nodes import gb10

PAGE = Path("docs/security.md")
BEGIN, END = "<!-- rights: generated -->\n", "<!-- end of rights -->\n"
PART = {
    "export": {"path": "/models/DeepSeek-V4.1-Flash", "clients": ["192.168.1.2"]},
    "attach": {
        "server": "192.168.1.1",
        "path": "/models/DeepSeek-V4.1-Flash",
        "folder": "",
        "options": "ro,vers=4.2",
    },
}
"""A node that shares and one that reads at once: nobody is both, but the table shows all."""


def example() -> tuple[list[Right], str, str]:
    """Rights, exports and fstab line of a recorded Founders Edition."""
    unit = Recorded(gb10.node(gb10.Unit(1)))
    found, exports, fstab = rights.of_node(cables.netdevs(unit), unit.names(CLASS), PART, uid=1000, gid=1000)
    return (
        [
            Right(name=one.name, argv=privileged.absolute(one.argv), verb=one.verb, why=one.why)
            for one in found
        ],
        exports,
        fstab,
    )


def table() -> str:
    """One row a command line; a second device's are like the first's."""
    found, exports, fstab = example()
    first = next(one.argv[-1] for one in found if one.name.startswith("plug "))
    rows = [
        f"| `{one.line}` | {one.verb} | {one.why} |"
        for one in found
        if not one.name.startswith(("plug ", "mtu ")) or first in one.argv
    ]
    said = [
        f"The account `spark` of a Founders Edition with four functions and one drive has {len(found)} lines; those of",
        f"its other functions are like `{first}`'s. `/etc/sparkyard/exports` and the line in `/etc/fstab` are then:",
    ]
    lines = [
        "| command line, every argument fixed | needed by | what it does |",
        "|---|---|---|",
        *rows,
        "",
        *said,
        "",
    ]
    files = ["```", *exports.splitlines(), *fstab.splitlines(), "```"]
    return "\n".join([*lines, *files]) + "\n"


def page(text: str) -> str:
    """The page with the table of today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def text_of_sudoers() -> str:
    """The sudoers file of the example."""
    return sudoers("spark", example()[0])


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()

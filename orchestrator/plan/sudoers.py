"""The text of a sudoers file that allows exactly some command lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.errors import ConfigError
from orchestrator.model.frozen import Frozen

PLACE = "/etc/sudoers.d/sparkyard"
ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")
PROGRAM = re.compile(r"/usr/s?bin/[a-z][a-z0-9.-]*")
WORD = re.compile(r"[A-Za-z0-9_./@%+,:=-]{1,4096}")
"""No blank, no wildcard, no quote: a path with others is refused. Three of these get a backslash, see sudoers(5)."""
SPECIAL = re.compile(r"[,:=]")


class Right(Frozen):
    """One command line, as the node's agent lists it."""

    name: str
    argv: tuple[str, ...]
    verb: str
    why: str

    @property
    def line(self) -> str:
        """For people."""
        return " ".join(self.argv)


def sudoers(account: str, rights: Iterable[Right]) -> str:
    """The whole file: one line a right, every argument fixed, no wildcard.

    ConfigError for an account, a program or an argument that cannot stand there, whoever sent it.
    """
    lines = [
        "# Written by `sparkyard enroll`: this account may run exactly these command lines as root, and nothing else.",
        f"# Take them back: rm {PLACE}",
    ]
    if not ACCOUNT.fullmatch(account):
        raise ConfigError([f"{account[:80]!r}: sudoers cannot name this account"])
    for right in rights:
        program, *words = right.argv
        if not PROGRAM.fullmatch(program) or not words:
            raise ConfigError(
                [f"{right.name}: {right.line[:200]!r} is no program of the system with its arguments"]
            )
        if bad := [word for word in words if not WORD.fullmatch(word)]:
            raise ConfigError([f"{right.name}: sudoers cannot name {bad[0][:200]!r}"])
        escaped = " ".join(SPECIAL.sub(r"\\\g<0>", word) for word in words)
        lines.append(f"{account} ALL=(root) NOPASSWD: {program} {escaped}")
    return "\n".join(lines) + "\n"

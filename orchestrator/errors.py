"""The one error tree. Each error knows the exit code that the command line ends with."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    UNDETERMINED = 3
    INTERRUPTED = 130


class SparkyardError(Exception):
    """Root of all errors that are shown to a person; the text names what, where and the remedy."""

    exit_code: Exit = Exit.FAILED


class ConfigError(SparkyardError):
    """A profile, a cluster file or an option is wrong. All problems are listed at once.

    Args:
        problems: one line each, ``file: key.path: what is wrong``.
    """

    exit_code = Exit.USAGE

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class NoProgress(SparkyardError):
    """`decide` asked again for a step that had just succeeded: a fault of sparkyard, never of the user."""


class ConformanceError(SparkyardError):
    """What an action changed is not what `predict` said."""


class Undetermined(SparkyardError):
    """Nothing could be found out, for example because no node answered."""

    exit_code = Exit.UNDETERMINED


class AskError(SparkyardError):
    """Asking a node failed; translated to a `Failure` value at the seam, never raised past it."""

    def __init__(self, kind: str, message: str, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.evidence = evidence

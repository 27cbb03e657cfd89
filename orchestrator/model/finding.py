"""What a check says about a node or a link."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from orchestrator.model.frozen import Frozen


class Severity(StrEnum):
    """How bad it is. `unknown` means that nobody could look: it is never fine."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"


class Confidence(StrEnum):
    """How sure the diagnosis is; the measurement itself is always certain."""

    HIGH = "high"
    """The value alone is the fault."""
    MEDIUM = "medium"
    """The value fits the fault, other causes are possible."""
    LOW = "low"
    """A sign that needs a probe."""


Why = Literal["unreachable", "right", "tool", "untested", "failed"]


class Finding(Frozen):
    """One statement. `check` is what a person types to ignore it."""

    check: str
    node: str = ""
    """Empty for the cluster as a whole."""
    link: str = ""
    """Network device, cage, drive or container on the node; empty for the node as a whole."""
    severity: Severity
    measured: str
    expected: str = ""
    evidence: str = ""
    remedy: str = ""
    because_of: str = ""
    """`key` of the finding that explains this one; empty for a headline."""
    confidence: Confidence = Confidence.HIGH
    why_unknown: Why | None = None
    origin: Literal["live", "recorded", ""] = ""
    ignored: bool = False
    """Demoted by `--ignore`; still shown, never counted."""
    was: Severity | None = Field(default=None)
    """The severity before it was ignored."""

    @property
    def key(self) -> str:
        """Names this finding in `because_of`."""
        place = f"{self.node}/{self.link}" if self.link else self.node
        return f"{self.check}@{place}" if place else self.check

"""What SGLang's log lines say about the boot. Pure; the texts are those of SGLang 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30  # SGLang prints "GB" and divides by 2**30


class Phase(StrEnum):
    """The boot in its order; a rank only ever moves forward."""

    STARTING = "starting"
    JOINED = "joined"  # behind the gate: every rank is in the process group, nothing large is allocated
    LOADING = "loading"
    KV = "kv"
    GRAPHS = "graphs"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"


ORDER = tuple(Phase)


def later(new: Phase, old: Phase) -> bool:
    """Whether `new` comes after `old` in the boot."""
    return ORDER.index(new) > ORDER.index(old)


@dataclass(frozen=True, slots=True)
class Sign:
    """What one line says. Every field is None when the line does not speak of it."""

    phase: Phase | None = None
    kv_tokens: int | None = None
    weights_bytes: int | None = None  # device memory that loading took, as SGLang measured it


# The draft model loads after the KV line of the main one: phases never go back.
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"Gated launch (control server started|waiting for activation)"), Phase.JOINED),
    (re.compile(r"Load weight begin\."), Phase.LOADING),
    (re.compile(r"Load weight end\."), Phase.KV),
    (re.compile(r"Capture .*\bbegin\b", re.IGNORECASE), Phase.GRAPHS),
    (re.compile(r"The server is fired up and ready to roll!"), Phase.READY),
)
_KV = re.compile(r"(?:DSV4 memory calculation:.*\bfull_token|\bmax_total_num_tokens)=(\d+)")
_WEIGHTS = re.compile(r"Load weight end\..*mem usage=(\d+(?:\.\d+)?) GB")


def read(line: str) -> Sign | None:
    """The sign in one log line, None when it has none."""
    phase = next((found for pattern, found in _PHASES if pattern.search(line)), None)
    kv = _KV.search(line)
    weights = _WEIGHTS.search(line)
    if phase is None and kv is None and weights is None:
        return None
    return Sign(
        phase=phase,
        kv_tokens=int(kv.group(1)) if kv else None,
        weights_bytes=round(float(weights.group(1)) * GIB) if weights else None,
    )


_SECRET_FIELD = re.compile(
    r"""((?:api_?key|token|password|secret|authorization)["']?\s*[=:]\s*["'])([^"']+)(["'])""", re.IGNORECASE
)
_BEARER = re.compile(r"(Bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_HF_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
HIDDEN = "***"
LEAST_SECRET = 6  # a shorter "secret" would blank out ordinary words


def redact(line: str, secrets: Iterable[str]) -> str:
    """`line` without the secrets and what looks like a key: SGLang prints its arguments, keys included."""
    for secret in secrets:
        if len(secret) >= LEAST_SECRET:
            line = line.replace(secret, HIDDEN)
    line = _SECRET_FIELD.sub(rf"\g<1>{HIDDEN}\g<3>", line)
    line = _BEARER.sub(rf"\g<1>{HIDDEN}", line)
    return _HF_TOKEN.sub(HIDDEN, line)

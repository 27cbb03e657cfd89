"""The engine settings of a profile that memory depends on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.profile import EnvSetting, FlagSetting, Profile, Scalar

DEFAULT_CHUNK = 8192  # SGLang's chunked prefill size where nothing is set, on a large-memory device
DEFAULT_CONTEXT = 1_048_576  # the model's positions
DEFAULT_REQUESTS = 256  # SGLang 0.5.23 for this model


def flag(profile: Profile, name: str) -> Scalar | None:
    """The value of the last setting of that flag; None when it is not set."""
    found = [s.value for s in profile.settings if isinstance(s, FlagSetting) and s.flag == name]
    return found[-1] if found else None


def has_flag(profile: Profile, name: str) -> bool:
    """Whether the flag is set, with or without a value."""
    return any(isinstance(s, FlagSetting) and s.flag == name for s in profile.settings)


def variable(profile: Profile, name: str) -> str | None:
    """The value of the last setting of that environment variable; None when it is not set."""
    found = [str(s.value) for s in profile.settings if isinstance(s, EnvSetting) and s.env == name]
    return found[-1] if found else None


def number(value: Scalar | None, default: int) -> int:
    """A whole number from a setting; the default where it is not set or is no number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, str) and value.isdigit() else default


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the ledger computes with. Tokens, requests, bytes."""

    chunk_tokens: int
    context_tokens: int
    pool_tokens: int | None
    """None: the pool is not pinned, the engine takes what the static fraction leaves."""
    requests: int
    static_fraction: float
    speculative: bool
    nccl_buffer_bytes: int
    nccl_ll128_bytes: int
    nccl_ll_bytes: int
    nccl_channels: int


NCCL_BUFFER_BYTES = 4 << 20
"""NCCL_BUFFSIZE when unset (NCCL 2.30.7)."""
NCCL_LL128_BYTES = 120 * 640 * 8 * 8
"""NCCL_LL128_BUFFSIZE when unset: 120 lines x 640 threads x 8 bytes x 8 steps (NCCL 2.30.7)."""
NCCL_LL_BYTES = 8 * 512 * 8 * 16
"""NCCL_LL_BUFFSIZE when unset (NCCL 2.30.7)."""
NCCL_CHANNELS = 64
"""Most channels of a communicator (NCCL 2.30)."""


def sizes(profile: Profile) -> Sizes:
    """The sizes that the profile asks for, SGLang's and NCCL's defaults where it is silent."""
    pool = flag(profile, "--max-total-tokens")
    fraction = flag(profile, "--mem-fraction-static")
    ll128 = number(variable(profile, "NCCL_LL128_BUFFSIZE"), NCCL_LL128_BYTES)
    return Sizes(
        chunk_tokens=number(flag(profile, "--chunked-prefill-size"), DEFAULT_CHUNK),
        context_tokens=number(flag(profile, "--context-length"), DEFAULT_CONTEXT),
        pool_tokens=None if pool is None else number(pool, 0),
        requests=number(flag(profile, "--max-running-requests"), DEFAULT_REQUESTS),
        static_fraction=float(fraction) if isinstance(fraction, (int, float)) else 0.9,
        speculative=has_flag(profile, "--speculative-algorithm"),
        nccl_buffer_bytes=number(variable(profile, "NCCL_BUFFSIZE"), NCCL_BUFFER_BYTES),
        nccl_ll128_bytes=ll128,
        nccl_ll_bytes=number(variable(profile, "NCCL_LL_BUFFSIZE"), NCCL_LL_BYTES),
        nccl_channels=number(variable(profile, "NCCL_MAX_NCHANNELS"), NCCL_CHANNELS),
    )

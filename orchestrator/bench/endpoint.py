"""What an endpoint says about itself: model, limits, version. Only named keys are taken, so that no key or
path of the server's arguments ends up in a record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestrator.bench.record import Provenance, Speculation
from orchestrator.bench.source import LoadFailed, LoadSource
from orchestrator.errors import SparkyardError, Undetermined

OK = 200


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI endpoint as it describes itself; `server` is SGLang's `/server_info`, empty elsewhere."""

    model: str
    context_limit_tokens: int | None
    server: dict[str, Any]

    def value(self, key: str) -> Any:
        """A key of the server's arguments or of its first scheduler's state; None when it is not there."""
        if (value := self.server.get(key)) is not None:
            return value
        states = self.server.get("internal_states") or [{}]
        return states[0].get(key) if isinstance(states[0], dict) else None


async def look(source: LoadSource, base_url: str, headers: dict[str, str]) -> Endpoint:
    """Asks `/v1/models` and `/server_info`.

    Raises:
        Undetermined: nothing answers at `base_url`.
        SparkyardError: something answers that is no OpenAI endpoint.
    """
    url = f"{base_url}/v1/models"
    try:
        page = await source.get(url, headers)
    except LoadFailed as problem:
        raise Undetermined(
            f"bench: no answer at {url} ({problem}); `status` shows whether the deployment serves"
        ) from None
    if page.status != OK:
        raise SparkyardError(f"bench: {url} answers {page.status}: {page.text[:200]}")
    try:
        entry = json.loads(page.text)["data"][0]
        model, limit = str(entry["id"]), entry.get("max_model_len")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise SparkyardError(f"bench: {url} is no OpenAI model list: {page.text[:200]}") from None
    described = await source.get(f"{base_url}/server_info", headers)
    try:
        # not SGLang, or none of its answers: what it does not tell stays "not stated"
        server = json.loads(described.text) if described.status == OK else {}
    except ValueError:
        server = {}
    return Endpoint(model, int(limit) if limit else None, server if isinstance(server, dict) else {})


def completed(provenance: Provenance, endpoint: Endpoint) -> Provenance:
    """The provenance with what only the running server knows, where the caller left it open."""

    def number(key: str) -> int | None:
        value = endpoint.value(key)
        return int(value) if isinstance(value, int | float) else None

    def text(key: str) -> str | None:
        value = endpoint.value(key)
        return value if isinstance(value, str) else None

    found: dict[str, Any] = {
        "model": endpoint.model,
        "engine": "sglang" if endpoint.server else None,
        "engine_version": text("version"),
        "quantisation": text("quantization") or text("dtype"),
        "kv_format": text("kv_cache_dtype"),
        "kv_tokens": number("max_total_num_tokens"),
        "context_limit_tokens": endpoint.context_limit_tokens or number("context_length"),
        "tp": number("tp_size"),
        "ep": number("ep_size"),
        "speculation": _speculation(endpoint) if endpoint.server else None,
    }
    missing = {key: value for key, value in found.items() if getattr(provenance, key) is None}
    return provenance.model_copy(update=missing)


def accept_length(endpoint: Endpoint) -> float | None:
    """Tokens a verify step accepted on average; None without speculation."""
    value = endpoint.value("avg_spec_accept_length")
    return float(value) if isinstance(value, int | float) else None


def _speculation(endpoint: Endpoint) -> Speculation | str:
    algorithm = endpoint.value("speculative_algorithm")
    if not isinstance(algorithm, str):
        return "off"
    block = endpoint.value("speculative_dspark_block_size") or endpoint.value("speculative_num_draft_tokens")
    return Speculation(
        algorithm=algorithm,
        block_size=block if isinstance(block, int) else None,
        accept_length=accept_length(endpoint),
    )

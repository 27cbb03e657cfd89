"""Asks a deployment the comparison's prompts over SGLang's own API, and reads its Engram counters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import SparkyardError
from orchestrator.lab.equality import Answer
from orchestrator.lab.prompts import NEW_TOKENS, Prompt

REQUEST_TIMEOUT_S = 120.0  # the longest prompt takes 5 s on two cores
METRICS_TIMEOUT_S = 20.0
ROWS_READ = "sparkyard_engram_rows_read_total"


class AskingError(SparkyardError):
    """A deployment did not answer as SGLang does; the text names the address and what came back."""


async def ask(url: str, prompts: Sequence[Prompt], new_tokens: int = NEW_TOKENS) -> tuple[Answer, ...]:
    """The answers of the deployment at ``url`` (``http://host:port``), wave by wave, in the prompts'
    order."""
    answers: list[Answer] = []
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        for _, wave in groupby(prompts, key=lambda prompt: prompt.wave):
            together = list(wave)
            concurrent = len(together) > 1
            answers += await asyncio.gather(
                *(_ask(client, prompt, new_tokens, concurrent=concurrent) for prompt in together)
            )
    return tuple(answers)


async def _ask(client: httpx.AsyncClient, prompt: Prompt, new_tokens: int, *, concurrent: bool) -> Answer:
    body = {
        "input_ids": list(prompt.tokens),
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    where = f"{client.base_url}generate, prompt {prompt.name!r}"
    try:
        response = await client.post("/generate", json=body)
        response.raise_for_status()
        meta = response.json()["meta_info"]
        return _answer(prompt, meta, concurrent=concurrent)
    except httpx.HTTPStatusError as error:
        raise AskingError(f"{where}: {error.response.status_code} {error.response.text[:300]}") from error
    except httpx.HTTPError as error:
        raise AskingError(f"{where}: {type(error).__name__} {error}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise AskingError(f"{where}: not an answer of SGLang: {error!r}") from error


def _answer(prompt: Prompt, meta: dict[str, Any], *, concurrent: bool) -> Answer:
    chosen = meta["output_token_logprobs"]
    best = meta["output_top_logprobs"]
    return Answer(
        prompt=prompt.name,
        concurrent=concurrent,
        prompt_tokens=int(meta["prompt_tokens"]),
        cached_tokens=int(meta["cached_tokens"]),
        tokens=tuple(int(entry[1]) for entry in chosen),
        logprobs=tuple(float(entry[0]) for entry in chosen),
        gap=min((float(pair[0][0]) - float(pair[1][0]) for pair in best), default=0.0),
    )


def rows_read(urls: Sequence[str]) -> int:
    """Engram rows read since the start, summed over the metrics pages of all ranks. Raises AskingError."""
    total = 0.0
    for url in urls:
        try:
            page = httpx.get(
                f"{url}/metrics", timeout=METRICS_TIMEOUT_S, trust_env=False, follow_redirects=True
            )
            page.raise_for_status()
            families = list(text_string_to_metric_families(page.text))
        except (httpx.HTTPError, ValueError) as error:
            raise AskingError(f"{url}/metrics: {error}") from error
        samples = [sample for family in families for sample in family.samples if sample.name == ROWS_READ]
        if not samples:
            raise AskingError(f"{url}/metrics: no {ROWS_READ}: this rank reads no Engram rows from disk")
        total += sum(sample.value for sample in samples)
    return round(total)

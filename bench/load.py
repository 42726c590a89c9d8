"""One mixed load on an OpenAI-compatible server: batch requests all at once, urgent ones arriving on a schedule.

Open loop: urgent requests start at their times, whether earlier ones were answered or not. TTFT and TBT are what the
client sees: from just before the request is sent to each streamed token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

WORDS = ("quick", "train", "leaves", "at", "noon", "every", "lane", "held", "by", "freight", "is", "free", "again")


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        batch_requests: sent at the start, all at once.
        urgent_every_s: seconds from one urgent arrival to the next.
        lead_s: from the batch's start to the first urgent arrival, seconds.
    """

    name: str
    batch_requests: int
    batch_prompt_tokens: int
    batch_output_tokens: int
    urgent_requests: int
    urgent_prompt_tokens: int
    urgent_output_tokens: int
    urgent_every_s: float
    lead_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where and how requests of a class are sent: by header (Expresslane) or by body field (vLLM's own server)."""

    url: str
    model: str
    urgent_headers: Mapping[str, str] = field(default_factory=dict)
    urgent_fields: Mapping[str, Any] = field(default_factory=dict)
    batch_headers: Mapping[str, str] = field(default_factory=dict)
    batch_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed answer: seconds to the first token, and between tokens."""

    ttft_s: float
    tbt_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a load showed.

    Attributes:
        all_done_s: from the first request to the last answer's end.
        slowest_batch_s: end to end of the batch request that took longest.
    """

    urgent: tuple[Timing, ...]
    all_done_s: float
    slowest_batch_s: float

    def ttft_ms(self, percentile: float) -> float:
        """Of the urgent requests, milliseconds."""
        return float(np.percentile([t.ttft_s for t in self.urgent], percentile)) * 1e3

    def tbt_ms(self, percentile: float) -> float:
        """Of the urgent requests' tokens, milliseconds."""
        return float(np.percentile([gap for t in self.urgent for gap in t.tbt_s], percentile)) * 1e3


def prompt_of(tokens: int, salt: int) -> str:
    """A prompt of about `tokens` tokens (most English words are one), different for each `salt`."""
    words = [f"{salt}:"] + [WORDS[(i * 7 + salt) % len(WORDS)] for i in range(max(1, tokens - 4))]
    return " ".join(words)


async def run_load(route: Route, load: Load) -> Measured:
    """Runs `load` once. Raises httpx.HTTPError or RuntimeError when a request is not answered in full."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=route.url, timeout=600, limits=limits) as client:
        started = time.perf_counter()
        batch = [asyncio.create_task(_batch(client, route, load, i)) for i in range(load.batch_requests)]
        if batch:
            await asyncio.sleep(load.lead_s)
        urgent = []
        first_s = time.perf_counter()
        for i in range(load.urgent_requests):
            await asyncio.sleep(max(0.0, first_s + i * load.urgent_every_s - time.perf_counter()))
            urgent.append(asyncio.create_task(_urgent(client, route, load, i)))
        timings = await asyncio.gather(*urgent)
        batch_s = await asyncio.gather(*batch)
        return Measured(tuple(timings), time.perf_counter() - started, max(batch_s, default=0.0))


async def run_idle(route: Route, load: Load) -> Measured:
    """The urgent part of `load` alone, on an idle server."""
    return await run_load(route, replace(load, batch_requests=0))


def _body(route: Route, prompt: str, max_tokens: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": route.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **extra,
    }


async def _batch(client: httpx.AsyncClient, route: Route, load: Load, index: int) -> float:
    body = _body(route, prompt_of(load.batch_prompt_tokens, 1000 + index), load.batch_output_tokens, route.batch_fields)
    started = time.perf_counter()
    answer = await client.post("/v1/completions", json=body, headers=dict(route.batch_headers))
    answer.raise_for_status()
    return time.perf_counter() - started


async def _urgent(client: httpx.AsyncClient, route: Route, load: Load, index: int) -> Timing:
    body = _body(route, prompt_of(load.urgent_prompt_tokens, index), load.urgent_output_tokens, route.urgent_fields)
    body["stream"] = True
    started = time.perf_counter()
    arrivals: list[float] = []
    async with client.stream("POST", "/v1/completions", json=body, headers=dict(route.urgent_headers)) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(f"urgent request {index}: {event['error']}")
                arrivals.append(time.perf_counter())
    if not arrivals:
        raise RuntimeError(f"urgent request {index}: no token")
    return Timing(arrivals[0] - started, tuple(_gaps(arrivals)))


def _gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]

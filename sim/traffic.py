"""What arrives: requests of recorded traces and of random ones, all classes merged by time. Seeded."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from sim.request import Arrival
from sim.scenario import Lengths, Poisson, Scenario, Trace, TrafficSpec
from slo.priority import PriorityClass

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MICROSECOND_DIGITS = 6

Row = tuple[float, int, int]
"""Seconds from the start, tokens of the prompt and of the answer."""


def arrivals_of(scenario: Scenario) -> list[Arrival]:
    """Everything that arrives, in order.

    Raises:
        OSError, ValueError: a trace cannot be read.
    """
    rows = []
    for number, spec in enumerate(scenario.traffic):
        random = np.random.default_rng((scenario.seed, number))
        rows += [(at_s, number, prompt, output) for at_s, prompt, output in _rows_of(spec, scenario, random)]
    rows.sort()
    most = scenario.max_model_len
    return [_arrival(i, row, scenario.traffic[row[1]], most) for i, row in enumerate(rows)]


def _arrival(number: int, row: tuple[float, int, int, int], spec: TrafficSpec, max_model_len: int) -> Arrival:
    at_s, index, prompt_tokens, output_tokens = row
    prompt_tokens = max(1, min(prompt_tokens, max_model_len - 2))
    output_tokens = max(1, min(output_tokens, max_model_len - 1 - prompt_tokens))
    priority = PriorityClass.parse(spec.priority)
    assert priority is not None, "the scenario was checked"
    return Arrival(number, at_s, priority, prompt_tokens, output_tokens, spec.shared_prefix_tokens, index)


def _rows_of(spec: TrafficSpec, scenario: Scenario, random: np.random.Generator) -> Iterator[Row]:
    scale = scenario.time_scale * spec.time_scale
    until_s = scenario.duration_s if spec.until_s is None else min(spec.until_s, scenario.duration_s)
    for at_s, prompt_tokens, output_tokens in _unscaled(spec, scenario, random, scale):
        if at_s / scale >= until_s:
            return
        if at_s / scale >= spec.from_s:
            yield at_s / scale, prompt_tokens, output_tokens


def _unscaled(spec: TrafficSpec, scenario: Scenario, random: np.random.Generator, scale: float) -> Iterator[Row]:
    match spec.source:
        case Trace() as trace:
            low, high = _lot_of(spec, scenario)
            lots = np.random.default_rng(scenario.seed)  # the same for all who share a trace: each row has one owner
            for at_s, prompt_tokens, output_tokens in azure_rows(trace.path):
                if low <= lots.random() < high:
                    yield at_s, min(prompt_tokens, trace.max_prompt_tokens or prompt_tokens), output_tokens
        case Poisson() as poisson:
            at_s = 0.0
            while at_s / scale < scenario.duration_s:
                at_s += float(random.exponential(1 / poisson.rate_per_s))
                yield at_s, draw(poisson.prompt_tokens, random), draw(poisson.output_tokens, random)


def _lot_of(spec: TrafficSpec, scenario: Scenario) -> tuple[float, float]:
    """The part of [0, 1) that is this one's, where several share a trace."""
    assert isinstance(spec.source, Trace)
    low = 0.0
    for other in scenario.traffic:
        if other is spec:
            break
        if isinstance(other.source, Trace) and other.source.path == spec.source.path:
            low += other.source.share
    return low, low + spec.source.share


def draw(lengths: Lengths, random: np.random.Generator) -> int:
    """A length: log-normal, within its bounds."""
    variance = math.log(1 + lengths.cv**2)
    value = random.lognormal(math.log(lengths.mean) - variance / 2, math.sqrt(variance)) if variance else lengths.mean
    return max(1, min(round(value), lengths.max or round(value)))


def azure_rows(path: Path) -> Iterator[Row]:
    """The rows of an Azure LLM inference trace of 2023, from its first time on.

    Raises:
        OSError, ValueError: it cannot be read, or a line is not of this format; the message names both.
    """
    first: datetime | None = None
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path}: its columns are {lines.fieldnames}, not {', '.join(COLUMNS)}")
        for line in lines:
            try:
                at = _timestamp(line["TIMESTAMP"])
                tokens = int(line["ContextTokens"]), int(line["GeneratedTokens"])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {lines.line_num}: {error}") from None
            first = first or at
            yield ((at - first).total_seconds(), *tokens)


def _timestamp(text: str) -> datetime:
    """The trace writes seven digits after the point; Python's own reader takes six."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:_MICROSECOND_DIGITS] or '0'}")

"""The order of a load: each class's source joined with its times, and all classes merged by time.

Lazy, so that an hour of traces costs no memory; the same seed gives the same requests at the same times, whichever
classes are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice, repeat
from zlib import crc32

import numpy as np

from bench.arrivals import constant_times, gamma_times
from bench.scenario import ClassSpec, Scenario
from bench.sources import rows_of
from bench.workload import Arrival

_TIMES, _ROWS, _LOTS = range(3)


def plan(scenario: Scenario, seed: int, *, chosen: Scenario | None = None) -> Iterator[Arrival]:
    """Every request of `scenario` in order of time, without an end unless its sources have one.

    Args:
        chosen: the classes of `scenario` that are sent; None: all.

    Raises:
        OSError, ValueError: a source's file cannot be read.
    """
    streams = [_of_class(scenario, spec, seed) for spec in (chosen or scenario).classes]
    return heapq.merge(*streams, key=lambda arrival: arrival.at_s)


def _of_class(scenario: Scenario, spec: ClassSpec, seed: int) -> Iterator[Arrival]:
    arrivals = _by_trace(scenario, spec, seed) if spec.comes_by_trace else _by_rate(scenario, spec, seed)
    for arrival in islice(arrivals, spec.max_requests):
        yield Arrival((spec.start_s + arrival.at_s) / scenario.time_scale, spec, arrival.ask)


def _by_rate(scenario: Scenario, spec: ClassSpec, seed: int) -> Iterator[Arrival]:
    rows = rows_of(spec, _random(seed, spec.name, _ROWS))
    for at_s, row in zip(_times(scenario, spec, seed), rows, strict=False):
        yield Arrival(at_s, spec, row.ask)


def _times(scenario: Scenario, spec: ClassSpec, seed: int) -> Iterator[float]:
    rate = scenario.rate_of(spec)
    if rate is None:
        return repeat(0.0)
    if spec.arrivals == "constant":
        return constant_times(rate)
    return gamma_times(rate, spec.burstiness or 1.0, _random(seed, spec.name, _TIMES))


def _by_trace(scenario: Scenario, spec: ClassSpec, seed: int) -> Iterator[Arrival]:
    """A trace that several classes read is dealt out among them by one lot a row, so that none gets another's."""
    low = 0.0
    for other in scenario.classes:
        if other.name == spec.name:
            break
        if other.comes_by_trace and other.share is not None and _path(other) == _path(spec):
            low += other.share
    high = low + (spec.share if spec.share is not None else 1.0)
    lots = _random(seed, str(_path(spec)), _LOTS)
    for row in rows_of(spec, _random(seed, spec.name, _ROWS)):
        if low <= lots.random() < high and row.at_s is not None:
            yield Arrival(row.at_s, spec, row.ask)


def _path(spec: ClassSpec) -> object:
    return getattr(spec.source, "path", None)


def _random(seed: int, name: str, purpose: int) -> np.random.Generator:
    return np.random.default_rng((seed, crc32(name.encode()), purpose))

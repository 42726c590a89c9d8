"""The highest rate at which a condition holds: doubling until it fails, then halving the distance. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found.

    Attributes:
        highest: the highest rate that held; None: none of those tried did.
        lowest_failed: the lowest rate that failed, above `highest`; None: none did.
        tried: each rate and whether it held, in the order tried.
    """

    highest: float | None
    lowest_failed: float | None
    tried: tuple[tuple[float, bool], ...]


def find_highest(holds: Callable[[float], bool], start: float, precision: float, max_tries: int) -> Search:
    """Searches from `start`, up or down.

    `holds` is taken to be true below some rate and false above it. Where it is not quite so, because runs differ, the
    answer is a rate that held once and lies within `precision` of one that failed.

    Args:
        precision: ends when the lowest that failed is at most so much above the highest that held, as a ratio (0.1).
        max_tries: ends after so many calls of `holds`, whatever was reached.
    """
    low: float | None = None
    high: float | None = None
    tried: list[tuple[float, bool]] = []
    while len(tried) < max_tries and (rate := next_rate(low, high, start, precision)) is not None:
        held = holds(rate)
        tried.append((rate, held))
        if held:
            low = rate
        else:
            high = rate
    return Search(low, high, tuple(tried))


def next_rate(low: float | None, high: float | None, start: float, precision: float) -> float | None:
    """What to try next between the highest that held and the lowest that failed; None: they are close enough."""
    if low is None:
        return start if high is None else high / 2
    if high is None:
        return low * 2
    # The middle of a ratio: as close, whichever end the answer lies at.
    return math.sqrt(low * high) if high > low * (1 + precision) else None

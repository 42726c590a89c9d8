"""The smallest number with which a condition holds: doubling until it does, then halving the distance. Pure."""

from __future__ import annotations

from collections.abc import Callable


def find_fewest(holds: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from 1 to `most` with which `holds`; None: not even `most` does.

    `holds` is taken to be false below some number and true from it on, and is called once for each number tried.
    """
    failed, held, number = 0, None, min(start, most)
    while held is None:
        if holds(number):
            held = number
        elif number == most:
            return None
        else:
            failed, number = number, min(2 * number, most)
    while held - failed > 1:
        middle = (failed + held) // 2
        if holds(middle):
            held = middle
        else:
            failed = middle
    return held

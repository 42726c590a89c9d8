"""When requests arrive: endless streams of times, seconds from the start. Pure but for the generator given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

_CHUNK = 256


def constant_times(rate: float) -> Iterator[float]:
    """One request each 1 / `rate` seconds, the first at once."""
    return (i / rate for i in count())


def gamma_times(rate: float, shape: float, random: np.random.Generator) -> Iterator[float]:
    """Intervals of a gamma distribution of this shape: 1 is a Poisson stream, below it bursts, above it is steadier.

    The mean rate is `rate` for every shape; the coefficient of variation of the intervals is 1 / sqrt(shape). The same
    as `burstiness` in vLLM's benchmark.
    """
    now_s = 0.0
    while True:
        for interval_s in random.gamma(shape, 1 / (rate * shape), size=_CHUNK).tolist():
            now_s += interval_s
            yield now_s

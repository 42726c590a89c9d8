from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import constant_times, gamma_times

SAMPLES = 20_000


def intervals(rate: float, shape: float, seed: int = 1, num: int = SAMPLES) -> np.ndarray:
    times = list(islice(gamma_times(rate, shape, np.random.default_rng(seed)), num + 1))
    return np.diff([0.0, *times])


def test_constant_times_are_evenly_spaced_from_the_start() -> None:
    assert list(islice(constant_times(4), 4)) == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_times_have_the_rate_and_the_spread_of_their_shape(shape: float) -> None:
    gaps = intervals(rate=5, shape=shape)
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.05)


@given(st.integers(0, 2**32), st.floats(0.01, 1e4), st.floats(0.05, 20))
def test_gamma_times_never_go_back_and_are_the_seeds(seed: int, rate: float, shape: float) -> None:
    times, again = (list(islice(gamma_times(rate, shape, np.random.default_rng(seed)), 300)) for _ in range(2))
    assert all(before <= after for before, after in pairwise(times))
    assert times == again
    assert times[0] >= 0

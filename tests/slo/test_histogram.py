"""Mutations tried by hand, each found by a test here: a bound's own value counted above it; the bucket above all bounds
left out of the count; a later state subtracted from an earlier one; the quantile not interpolated; histograms of
different bounds added."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo.histogram import BATCH_BOUNDS, LATENCY_BOUNDS_S, Histogram, HistogramCounts, merged
from slo.settings import ClassTargets

BOUNDS = (1.0, 2.0, 4.0)
VALUES = st.lists(st.floats(0, 700, allow_nan=False), max_size=60)
PROPERTY = settings(derandomize=True, deadline=None, database=None)


def of(*values: float, bounds: tuple[float, ...] = BOUNDS) -> HistogramCounts:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram.counts()


def test_latency_bounds_grow_and_are_at_most_a_sixth_apart() -> None:
    ratios = [high / low for low, high in pairwise(LATENCY_BOUNDS_S)]
    assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (0.001, 600)
    assert min(ratios) > 1
    assert max(ratios) < 1.17


def test_latency_bounds_hold_every_default_target_and_its_double() -> None:
    targets = ClassTargets()
    of_classes = (targets.p0, targets.p1, targets.p2)
    in_ms = [t for c in of_classes for t in (c.ttft_p99_ms, c.tbt_p99_ms) if t is not None]
    assert {ms * times / 1e3 for ms in in_ms for times in (1, 2)} <= set(LATENCY_BOUNDS_S)


def test_batch_bounds_grow() -> None:
    assert list(BATCH_BOUNDS) == sorted(set(BATCH_BOUNDS))


def test_histogram_counts_a_bound_below_it_and_what_lies_above_all_in_the_last() -> None:
    counts = of(0.0, 1.0, 1.5, 2.0, 4.0, 4.1, 1000.0)
    assert counts.counts == (2, 2, 1, 2)
    assert (counts.count, counts.sum) == (7, pytest.approx(1012.6))


def test_histogram_counts_are_a_value_that_does_not_grow() -> None:
    histogram = Histogram(BOUNDS)
    before = histogram.counts()
    histogram.observe(1.0)
    assert (before.count, histogram.counts().count) == (0, 1)
    assert pickle.loads(pickle.dumps(before)) == before == HistogramCounts.empty(BOUNDS)


@pytest.mark.parametrize("counts", [(1, 2, 3), (1, 2, 3, 4, 5), ()])
def test_histogram_counts_refuse_another_number_of_counts(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{len(counts)} counts for 3 bounds"):
        HistogramCounts(BOUNDS, counts, 0.0)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ((), 0.99, None),
        ((0.5,), 1.0, 1.0),
        ((0.5, 0.5), 0.5, 0.5),
        ((1.5,) * 4, 0.25, 1.25),
        ((1.5,) * 4, 1.0, 2.0),
        ((0.5, 3.0), 0.5, 1.0),
        ((0.5, 3.0), 0.75, 3.0),
        ((0.5, 9.0), 0.99, 4.0),
        ((9.0,), 0.5, 4.0),
    ],
)
def test_quantile_is_interpolated_inside_its_bucket(
    values: tuple[float, ...], q: float, expected: float | None
) -> None:
    assert of(*values).quantile(q) == expected


@pytest.mark.parametrize(("bound", "expected"), [(0.5, 0), (1.0, 2), (1.9, 2), (2.0, 3), (4.0, 4), (100.0, 4)])
def test_num_within_is_exact_at_bounds_and_of_the_lower_one_between_them(bound: float, expected: int) -> None:
    assert of(0.5, 1.0, 1.5, 3.0, 9.0).num_within(bound) == expected


@pytest.mark.parametrize(("values", "expected"), [((), None), ((1.0, 3.0), 2.0)])
def test_mean_is_of_the_values_and_none_without_any(values: tuple[float, ...], expected: float | None) -> None:
    assert of(*values).mean == expected


def test_histograms_of_different_bounds_are_not_combined() -> None:
    other = HistogramCounts.empty((1.0,))
    for combine in (lambda: of(1.0) + other, lambda: of(1.0) - other):
        with pytest.raises(ValueError, match="different bounds"):
            combine()


def test_a_later_state_is_not_subtracted_from_an_earlier_one() -> None:
    with pytest.raises(ValueError, match="not an earlier state"):
        _ = of(1.0) - of(1.0, 3.0)


def test_merged_is_empty_for_none() -> None:
    assert merged([], BOUNDS) == HistogramCounts.empty(BOUNDS)


@PROPERTY
@given(VALUES, VALUES)
def test_merged_is_as_if_one_had_seen_all_and_the_difference_is_what_came_since(
    first: list[float], later: list[float]
) -> None:
    before, after = (of(*values, bounds=LATENCY_BOUNDS_S) for values in (first, first + later))
    alone = of(*later, bounds=LATENCY_BOUNDS_S)
    both = merged([before, alone], LATENCY_BOUNDS_S)
    assert (both.counts, both.sum) == (after.counts, pytest.approx(after.sum))
    assert ((after - before).counts, (after - before).sum) == (alone.counts, pytest.approx(alone.sum, abs=1e-6))


@PROPERTY
@given(VALUES.filter(bool), st.floats(0.01, 1.0))
def test_quantile_lies_in_the_bucket_of_the_value_of_that_rank(values: list[float], q: float) -> None:
    ranked = sorted(values)
    at_rank = ranked[max(0, -int(-q * len(ranked) // 1) - 1)]
    estimate = of(*values, bounds=LATENCY_BOUNDS_S).quantile(q)
    above = min((bound for bound in LATENCY_BOUNDS_S if bound >= at_rank), default=LATENCY_BOUNDS_S[-1])
    below = max((bound for bound in LATENCY_BOUNDS_S if bound < at_rank), default=0.0)
    assert estimate is not None
    assert min(below, LATENCY_BOUNDS_S[-1]) <= estimate <= above

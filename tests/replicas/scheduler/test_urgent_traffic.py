"""When an urgent request is to be expected."""

from __future__ import annotations

import pytest

from replicas.scheduler.urgent_traffic import GAPS, UrgentTraffic


def test_urgent_is_not_expected_before_the_first_has_come() -> None:
    assert not UrgentTraffic("lately", 1, 30).is_expected(1e9)


@pytest.mark.parametrize(("expectation", "expected"), [("always", True), ("never", False)])
def test_urgent_is_expected_as_set_whatever_comes(expectation: str, expected: bool) -> None:
    traffic = UrgentTraffic(expectation, 1, 30)  # type: ignore[arg-type]
    assert traffic.is_expected(0) is expected
    traffic.note(0)
    assert traffic.is_expected(0.1) is expected
    assert traffic.is_expected(1e6) is expected


def test_urgent_is_expected_for_some_usual_gaps_after_the_last() -> None:
    traffic = UrgentTraffic("lately", 0.1, 30)
    for i in range(50):
        traffic.note(i * 2.0)
    assert traffic.is_expected(98 + GAPS * 2.0 - 0.1)
    assert not traffic.is_expected(98 + GAPS * 2.0 + 0.1)


def test_urgent_is_expected_at_least_and_at_most_so_long() -> None:
    dense, rare = UrgentTraffic("lately", 3, 30), UrgentTraffic("lately", 3, 30)
    for i in range(50):
        dense.note(i * 0.01)
        rare.note(i * 1000.0)
    assert dense.is_expected(0.49 + 2.9)
    assert not dense.is_expected(0.49 + 3.1)
    assert rare.is_expected(49_000 + 29)
    assert not rare.is_expected(49_000 + 31)


def test_urgent_is_expected_the_longest_after_the_very_first() -> None:
    traffic = UrgentTraffic("lately", 3, 30)
    traffic.note(100)
    assert traffic.is_expected(129)
    assert not traffic.is_expected(131)


def test_urgent_traffic_bears_a_clock_that_goes_back() -> None:
    traffic = UrgentTraffic("lately", 3, 30)
    for now_s in (100.0, 50.0, 51.0):
        traffic.note(now_s)
    assert traffic.is_expected(52)

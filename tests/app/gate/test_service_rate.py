"""Mutations that these tests see: count work while not first in line; count time while not first; no minimum of ended
requests; no minimum of measured time; no forgetting of a stale rate; no decay."""

import pytest

from app.gate.service_rate import ServiceRate

WINDOW_S = 30.0


def after(seconds: int, tokens_a_second: int, rate: ServiceRate, is_first: bool = True) -> ServiceRate:
    """`rate` after so many seconds with one request a second."""
    rate = rate.at(rate.now_s, is_first)
    for _ in range(seconds):
        rate = rate.at(rate.now_s + 1, is_first).ended(tokens_a_second)
    return rate


FRESH = ServiceRate(WINDOW_S, 0.0)


def test_rate_is_what_was_served_while_the_class_waited() -> None:
    rate = after(20, 500, FRESH)
    assert rate.tokens_per_s(rate.now_s) == pytest.approx(500, rel=0.02)


def test_rate_follows_a_change_within_a_few_windows() -> None:
    rate = after(90, 100, after(90, 500, FRESH))
    assert rate.tokens_per_s(rate.now_s) == pytest.approx(100, rel=0.25)


def test_rate_counts_neither_time_nor_work_while_the_class_is_not_first_in_line() -> None:
    rate = after(20, 500, FRESH)
    idle = after(60, 9_999, rate, is_first=False)
    assert idle.tokens_per_s(idle.now_s) == rate.tokens_per_s(rate.now_s)


@pytest.mark.parametrize(("num_ended", "seconds"), [(0, 10), (2, 10), (3, 0.5)])
def test_rate_is_unknown_when_too_little_was_seen(num_ended: int, seconds: float) -> None:
    rate = FRESH.at(0, True)
    for _ in range(num_ended):
        rate = rate.ended(100)
    rate = rate.at(seconds, True)
    assert rate.tokens_per_s(seconds) is None


def test_rate_is_known_when_just_enough_was_seen() -> None:
    rate = FRESH.at(0, True).ended(100).ended(100).ended(100).at(1.1, True)
    assert rate.tokens_per_s(1.1) is not None


def test_rate_falls_while_the_class_waits_and_nothing_ends() -> None:
    rate = after(30, 500, FRESH)
    before = rate.tokens_per_s(rate.now_s)
    rate = rate.at(rate.now_s + 60, True)
    stuck = rate.tokens_per_s(rate.now_s)
    assert before is not None
    assert stuck is not None
    assert 0 < stuck < before / 4


def test_rate_is_forgotten_when_it_was_not_measured_for_long() -> None:
    rate = after(20, 500, FRESH).at(20, False)
    assert rate.tokens_per_s(20 + 4 * WINDOW_S) is not None
    assert rate.tokens_per_s(21 + 4 * WINDOW_S) is None
    anew = rate.at(21 + 4 * WINDOW_S, True)
    assert anew == ServiceRate(WINDOW_S, 21 + 4 * WINDOW_S, True)


def test_rate_is_not_stale_while_the_class_waits() -> None:
    rate = after(20, 500, FRESH)
    assert rate.tokens_per_s(rate.now_s + 1000) is not None


def test_rate_grows_with_the_replicas() -> None:
    rate = after(20, 500, FRESH)
    doubled = rate.scaled(2).tokens_per_s(rate.now_s)
    assert doubled == pytest.approx(1000, rel=0.02)


def test_rate_is_not_changed_when_time_goes_back() -> None:
    rate = after(20, 500, FRESH)
    assert rate.at(5, True) == rate

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import (
    Attainment,
    attainment_of,
    figures_of,
    is_good,
    lag_of,
    latency_of,
    share_within,
    tokens_within,
)
from bench.reply import Reply
from bench.run import Answer
from bench.scenario import Targets
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

BOTH = Targets(ttft_ms=200, tbt_ms=50)
REFUSED = [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED]
QUICK = reply(0, 0.1, 0.12)
SLOW_START = reply(0, 0.3, 0.32)
SLOW_FLOW = reply(0, 0.1, 0.2)


def even(num: int, gap_s: float, *, slow: int = 0) -> Reply:
    """`num` gaps, of which `slow` are ten times as long."""
    gaps = [gap_s * 10] * slow + [gap_s] * (num - slow)
    return reply(0, *(0.1 + np.cumsum([0, *gaps])).tolist())


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200))
def test_latency_is_exact(values: list[float]) -> None:
    latency = latency_of(iter(values))
    assert latency is not None
    assert latency.count == len(values)
    assert latency.p50_ms == pytest.approx(float(np.median(values)) * 1e3)
    assert latency.p99_ms == pytest.approx(float(np.percentile(values, 99)) * 1e3)
    assert latency.max_ms == pytest.approx(max(values) * 1e3)
    assert latency.p50_ms <= latency.p90_ms <= latency.p95_ms <= latency.p99_ms <= latency.max_ms


def test_latency_of_nothing_is_none() -> None:
    assert latency_of([]) is None


@pytest.mark.parametrize(
    ("answered", "targets", "good"),
    [
        (QUICK, BOTH, True),
        (SLOW_START, BOTH, False),
        (SLOW_START, Targets(tbt_ms=50), True),
        (SLOW_FLOW, BOTH, False),
        (SLOW_FLOW, Targets(ttft_ms=200), True),
        (reply(0, 0.1), BOTH, True),  # one token has no gap
        (reply(0, 0.1, 0.12, ended_s=2), BOTH, True),
        (reply(0, 0.1, 0.12, ended_s=2), Targets(e2e_ms=1000), False),
        (reply(1, 1.1, 1.12), Targets(e2e_ms=150), True),
        (even(100, 0.01, slow=1), BOTH, True),  # promised at P99
        (even(100, 0.01, slow=2), BOTH, False),
        (even(50, 0.01, slow=1), BOTH, False),
    ],
)
def test_request_is_good_when_each_of_its_targets_held(answered: Reply, targets: Targets, good: bool) -> None:
    assert is_good(answered, targets) is good


@pytest.mark.parametrize("outcome", REFUSED)
def test_request_is_a_miss_when_it_was_not_answered_in_full(outcome: Outcome) -> None:
    missed = reply(0, 0.1, outcome=outcome)
    assert not is_good(missed, BOTH)
    assert attainment_of([QUICK, missed], BOTH) == Attainment(0.5, 0.5, 1.0, None, 0.5)


def test_attainment_is_the_share_within_each_target() -> None:
    attained = attainment_of([QUICK, QUICK, SLOW_START, SLOW_FLOW], BOTH)
    assert attained == Attainment(answered=1, ttft=0.75, tbt=0.75, e2e=None, every=0.5)


@pytest.mark.parametrize(
    ("attained", "holds"),
    [
        (Attainment(1, 1, 1, 1, 1), True),
        (Attainment(1, 0.99, 0.99, None, 0.5), True),
        (Attainment(1, 0.98, 1, None, 1), False),
        (Attainment(1, 1, 0.98, None, 1), False),
        (Attainment(1, 1, 1, 0.98, 1), False),
        (Attainment(0.98, None, 1, None, 1), False),  # what was refused has no gap that could be late
        (Attainment(0.0, None, None, None, 0.0), False),
    ],
)
def test_targets_hold_when_each_is_attained_and_requests_are_answered(attained: Attainment, holds: bool) -> None:
    assert attained.holds(0.99) is holds


@given(st.lists(st.floats(0, 10), max_size=50), st.floats(1, 1e4))
def test_share_within_is_a_share(values: list[float], target_ms: float) -> None:
    share = share_within(values, target_ms)
    assert (share is None) == (not values)
    assert share is None or 0 <= share <= 1


def test_figures_count_by_class_and_outcome_and_leave_out_the_warm_up() -> None:
    classes = [{"name": name, "rate": 1} for name in "ab"]
    told = [
        *answers(reply(1, 1.1), reply(2, 2.1), reply(3, outcome=Outcome.SHED, error="full")),
        *answers(reply(4, outcome=Outcome.EXPIRED), name="b"),
    ]
    figures = figures_of(run(told, (1.5, 6.5)), scenario(*classes))
    assert figures.of("a").outcomes == {Outcome.COMPLETED: 1, Outcome.SHED: 1}
    assert figures.of("b").outcomes == {Outcome.EXPIRED: 1}
    assert (figures.of("a").num_requests, figures.of("a").errors) == (2, ("full",))
    assert figures.sent_per_s == pytest.approx(3 / 5)


def test_inference_perf_169_goodput_leaves_out_a_class_without_targets_and_counts_refusals_as_misses() -> None:
    classes = [
        {"name": "a", "rate": 1, "targets": {"ttft_ms": 200}},
        {"name": "b", "rate": 1},
    ]
    told = [
        *answers(reply(0, 0.1), reply(1, 1.1), reply(2, 2.9), reply(3, outcome=Outcome.SHED)),
        *answers(QUICK, name="b"),
    ]
    figures = figures_of(run(told), scenario(*classes))
    assert figures.of("a").goodput_per_s == figures.goodput_per_s == pytest.approx(0.2)
    assert figures.of("a").attainment == Attainment(0.75, 0.5, None, None, 0.5)
    assert (figures.of("b").goodput_per_s, figures.of("b").attainment) == (None, None)
    assert figures.targets_hold is False


def test_figures_promise_nothing_when_no_class_has_targets() -> None:
    figures = figures_of(run(answers(QUICK)), scenario({"name": "a", "rate": 1}))
    assert (figures.goodput_per_s, figures.targets_hold) == (None, None)


def test_latencies_are_of_what_was_answered_in_full() -> None:
    told = answers(reply(1, 1.1, 1.3), reply(2, 5.0, outcome=Outcome.FAILED))
    figures = figures_of(run(told), scenario()).of("a")
    assert figures.ttft is not None
    assert figures.tbt is not None
    assert figures.e2e is not None
    assert (figures.ttft.count, figures.ttft.p50_ms) == (1, pytest.approx(100))
    assert (figures.tbt.count, figures.tbt.p50_ms) == (1, pytest.approx(200))
    assert figures.e2e.p50_ms == pytest.approx(300)


def test_throughput_is_what_came_within_the_window_whenever_it_was_asked() -> None:
    early = reply(-1, -0.5, 0.5, 1.5)
    late = reply(9, 9.5, 10.5, 11.5)
    figures = figures_of(run(answers(early, late)), scenario()).of("a")
    assert figures.completed_per_s == pytest.approx(1 / 10)
    assert figures.tokens_per_s == pytest.approx(3 / 10)


def test_tokens_are_the_servers_count_spread_over_the_events() -> None:
    many = reply(0, 1, 2, 11, 12, output_tokens=8, prompt_tokens=30)
    assert tokens_within(run([]), many) == 4
    assert tokens_within(run([]), reply(0, outcome=Outcome.SHED)) == 0
    figures = figures_of(run(answers(many)), scenario()).of("a")
    assert (figures.tokens_per_event, figures.prompt_tokens) == (2, 30)


def test_tokens_an_event_are_unknown_when_the_server_does_not_count() -> None:
    figures = figures_of(run(answers(QUICK)), scenario()).of("a")
    assert (figures.tokens_per_event, figures.prompt_tokens) == (None, None)


def test_lag_is_how_late_requests_were_sent_and_the_loop_was() -> None:
    told = [Answer("a", i, reply(i + 0.001 * i, i + 1)) for i in range(101)]
    lag = lag_of(run(told, loop_lags_s=(0.0, 0.004)))
    assert lag.send_max_ms == pytest.approx(100)
    assert lag.send_p99_ms == pytest.approx(99)
    assert lag.loop_max_ms == pytest.approx(4)
    assert (lag.kept_up(99.5), lag.kept_up(98)) == (True, False)


def test_generator_did_not_keep_up_when_its_loop_was_late_though_it_sent_in_time() -> None:
    lag = lag_of(run(answers(QUICK), loop_lags_s=(0.5,)))
    assert lag.send_p99_ms == 0
    assert not lag.kept_up(10)
    assert not figures_of(run(answers(QUICK), loop_lags_s=(0.5,)), scenario()).kept_up


def test_closed_loop_has_no_schedule_to_be_late_for() -> None:
    told = [Answer("a", 0, reply(5, 6))]
    assert lag_of(run(told, is_open=False)).send_p99_ms is None


def test_figures_of_an_empty_run_are_there() -> None:
    figures = figures_of(run([], (0, 0)), scenario())
    assert (figures.sent_per_s, figures.of("a").ttft, figures.targets_hold) == (0, None, None)

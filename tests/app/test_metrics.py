"""What an ingress process counts.

Mutations tried by hand, each found by a test here: a gap equal to the target counted as late; two late gaps allowed in
a hundred; a shed request left unjudged; a rejected one judged; a class without a promise judged; E2E of a failed
request observed; TTFT observed at every event; an ended request left in flight.
"""

from __future__ import annotations

import pickle
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.metrics import IngressMetrics, RequestMeter, TokenTimes, has_held
from slo.messages import Recovery
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import ClassTargets, LatencyTargets
from slo.snapshots import ClassTraffic

P0, P1, P2 = PriorityClass
TARGETS = LatencyTargets(ttft_p99_ms=100, tbt_p99_ms=20)


def times_of(*gaps_s: float, target_s: float | None = 0.02) -> TokenTimes:
    times = TokenTimes(target_s)
    for now_s in accumulate(gaps_s, initial=0.0):
        times.note(now_s)
    return times


def stream(meter: RequestMeter, *times_s: float, outcome: Outcome = Outcome.COMPLETED, end_s: float = 9.0) -> None:
    for now_s in times_s:
        meter.tokens_out(now_s)
    meter.end(outcome, end_s)


def traffic_of(metrics: IngressMetrics, priority: PriorityClass) -> ClassTraffic:
    metrics.check_invariants()
    return metrics.snapshot({}).classes[priority]


def test_token_times_are_none_before_there_are_tokens() -> None:
    times = TokenTimes(0.02)
    assert (times.first_s, times.max_gap_s, times.num_gaps) == (None, None, 0)
    assert times.note(1.0) is None
    assert (times.first_s, times.max_gap_s, times.num_gaps) == (1.0, None, 0)


def test_token_times_give_each_gap_and_keep_the_longest() -> None:
    times = TokenTimes(0.02)
    assert [times.note(now_s) for now_s in (1.0, 1.5, 3.5, 4.0)] == [None, 0.5, 2.0, 0.5]
    assert (times.first_s, times.max_gap_s, times.num_gaps, times.num_late_gaps) == (1.0, 2.0, 3, 3)


def test_token_times_count_no_gap_as_late_without_a_target() -> None:
    assert times_of(1.0, 2.0, target_s=None).num_late_gaps == 0


QUICK = (0.015,) * 99
HELD = [
    # outcome, ttft_s, gaps_s, held
    (Outcome.COMPLETED, 0.1, (0.015,), True),
    (Outcome.COMPLETED, 0.1001, (0.015,), False),
    (Outcome.COMPLETED, 0.1, (), True),
    (Outcome.COMPLETED, None, (), True),
    (Outcome.COMPLETED, 0.05, (0.015, 0.5), False),
    (Outcome.COMPLETED, 0.05, (*QUICK, 0.5), True),
    (Outcome.COMPLETED, 0.05, (*QUICK[1:], 0.5), False),
    (Outcome.COMPLETED, 0.05, (*QUICK, 0.5, 0.5), False),
    (Outcome.SHED, None, (), False),
    (Outcome.EXPIRED, None, (), False),
    (Outcome.FAILED, 0.05, (0.015,), False),
    (Outcome.REPLICA_LOST, 0.05, (0.015,), False),
    (Outcome.REJECTED, None, (), None),
    (Outcome.CANCELLED, 0.5, (0.5,), None),
]


@pytest.mark.parametrize(("outcome", "ttft_s", "gaps_s", "expected"), HELD)
def test_has_held_judges_a_request_of_a_promised_class(
    outcome: Outcome, ttft_s: float | None, gaps_s: tuple[float, ...], expected: bool | None
) -> None:
    assert has_held(outcome, ttft_s, times_of(*gaps_s), TARGETS) is expected


def test_has_held_table_has_every_outcome() -> None:
    assert {outcome for outcome, *_ in HELD} == set(Outcome)


def test_has_held_takes_a_gap_of_exactly_the_target_as_held() -> None:
    times = TokenTimes(0.5)
    times.note(1.0)
    times.note(1.5)
    assert has_held(Outcome.COMPLETED, 0.0, times, TARGETS) is True


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(
    "targets",
    [LatencyTargets(ttft_p99_ms=1, tbt_p99_ms=1, promised=False), LatencyTargets()],
    ids=["not promised", "no target"],
)
def test_has_held_judges_nothing_of_a_class_without_a_promise(targets: LatencyTargets, outcome: Outcome) -> None:
    assert has_held(outcome, 5.0, times_of(5.0), targets) is None


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (LatencyTargets(ttft_p99_ms=100), True),
        (LatencyTargets(tbt_p99_ms=20), False),
        (LatencyTargets(ttft_p99_ms=40), False),
    ],
)
def test_has_held_leaves_out_a_target_that_there_is_not(targets: LatencyTargets, expected: bool) -> None:
    target_ms = targets.tbt_p99_ms
    times = times_of(3.0, target_s=None if target_ms is None else target_ms / 1e3)
    assert has_held(Outcome.COMPLETED, 0.05, times, targets) is expected


def test_metrics_put_a_streamed_answer_into_its_class() -> None:
    metrics = IngressMetrics(ClassTargets())
    meter = metrics.begin(P0, 10.0)
    stream(meter, 10.05, 10.06, 10.5, end_s=11.0)
    traffic = traffic_of(metrics, P0)
    assert (traffic.ttft.count, traffic.tbt.count, traffic.e2e.count) == (1, 2, 1)
    assert traffic.ttft.sum == pytest.approx(0.05)
    assert traffic.tbt.sum == pytest.approx(0.45)
    assert traffic.e2e.sum == pytest.approx(1.0)
    assert (traffic.outcomes, traffic.num_in_flight) == ({Outcome.COMPLETED: 1}, 0)
    assert (traffic.num_held, traffic.num_missed) == (0, 1)
    assert traffic_of(metrics, P1) == traffic_of(metrics, P2) == ClassTraffic()


def test_metrics_show_tokens_while_the_answer_still_runs() -> None:
    metrics = IngressMetrics(ClassTargets())
    meter = metrics.begin(P1, 0.0)
    meter.tokens_out(0.25)
    meter.tokens_out(0.5)
    traffic = traffic_of(metrics, P1)
    assert (traffic.ttft.count, traffic.tbt.count, traffic.num_in_flight) == (1, 1, 1)
    assert (traffic.outcomes, traffic.e2e.count) == ({}, 0)


def test_metrics_give_an_answer_that_is_not_streamed_neither_ttft_nor_tbt() -> None:
    metrics = IngressMetrics(ClassTargets())
    metrics.begin(P0, 0.0).end(Outcome.COMPLETED, 5.0)
    traffic = traffic_of(metrics, P0)
    assert (traffic.ttft.count, traffic.tbt.count, traffic.e2e.sum) == (0, 0, 5.0)
    assert (traffic.num_held, traffic.num_missed) == (1, 0), "a target that does not apply cannot be missed"


@pytest.mark.parametrize(
    "outcome", [each for each in Outcome if each is not Outcome.COMPLETED], ids=lambda outcome: outcome.value
)
def test_metrics_give_no_e2e_to_an_answer_that_was_not_sent_in_full(outcome: Outcome) -> None:
    metrics = IngressMetrics(ClassTargets())
    metrics.begin(P0, 0.0).end(outcome, 0.001)
    traffic = traffic_of(metrics, P0)
    assert (traffic.e2e.count, traffic.outcomes, traffic.num_in_flight) == (0, {outcome: 1}, 0)


def test_metrics_leave_a_class_without_a_promise_out_of_attainment() -> None:
    metrics = IngressMetrics(ClassTargets())
    for outcome in Outcome:
        metrics.begin(P2, 0.0).end(outcome, 100.0)
    traffic = traffic_of(metrics, P2)
    assert (traffic.num_held, traffic.num_missed) == (0, 0)
    assert sum(traffic.outcomes.values()) == len(Outcome)


def test_metrics_keep_requests_without_a_class_apart() -> None:
    metrics = IngressMetrics(ClassTargets())
    metrics.end_unclassified(Outcome.REJECTED)
    metrics.end_unclassified(Outcome.REJECTED)
    assert metrics.snapshot({}).num_unclassified == {Outcome.REJECTED: 2}
    assert all(traffic == ClassTraffic() for traffic in metrics.snapshot({}).classes.values())


def test_snapshot_is_a_value_that_does_not_change_afterwards_and_crosses_processes() -> None:
    metrics = IngressMetrics(ClassTargets())
    metrics.begin(P0, 0.0)
    before = metrics.snapshot({})
    metrics.begin(P0, 0.0).tokens_out(1.0)
    assert (before.classes[P0].num_in_flight, before.classes[P0].ttft.count) == (1, 0)
    assert pickle.loads(pickle.dumps(before)) == before


def test_snapshots_of_one_process_have_one_source_and_those_of_two_differ() -> None:
    metrics, other = IngressMetrics(ClassTargets()), IngressMetrics(ClassTargets())
    assert metrics.snapshot({}).source_id == metrics.snapshot({}).source_id != other.snapshot({}).source_id
    assert metrics.snapshot({}).age_s == 0.0


@settings(derandomize=True, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PriorityClass), st.integers(0, 5), st.sampled_from([*Outcome, None])), max_size=30
    )
)
def test_metrics_end_every_request_once(requests: list[tuple[PriorityClass, int, Outcome | None]]) -> None:
    metrics, now_s = IngressMetrics(ClassTargets()), 0.0
    for priority, num_tokens, outcome in requests:
        meter = metrics.begin(priority, now_s)
        for _ in range(num_tokens):
            now_s += 0.01
            meter.tokens_out(now_s)
            metrics.check_invariants()
        if outcome is not None:
            meter.end(outcome, now_s)
        metrics.check_invariants()
    classes = metrics.snapshot({}).classes.values()
    assert sum(c.num_in_flight for c in classes) == sum(outcome is None for *_, outcome in requests)
    assert sum(c.ttft.count for c in classes) == sum(num_tokens > 0 for _, num_tokens, _ in requests)
    assert sum(c.tbt.count for c in classes) == sum(max(0, num_tokens - 1) for _, num_tokens, _ in requests)


def test_metrics_tell_who_waits_at_the_gate() -> None:
    snapshot = IngressMetrics(ClassTargets()).snapshot({PriorityClass.P2: 3})
    assert {priority: traffic.num_queued for priority, traffic in snapshot.classes.items()} == {
        PriorityClass.P0: 0,
        PriorityClass.P1: 0,
        PriorityClass.P2: 3,
    }


def test_metrics_count_what_became_of_lost_replicas() -> None:
    metrics = IngressMetrics(ClassTargets())
    assert metrics.snapshot({}).recoveries == {}
    for recovery in (Recovery.AGAIN, Recovery.AGAIN, Recovery.NOT_POSSIBLE):
        metrics.recovered(recovery)
    assert metrics.snapshot({}).recoveries == {Recovery.AGAIN: 2, Recovery.NOT_POSSIBLE: 1}

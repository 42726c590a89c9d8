"""Mutations tried, each seen by a test here: rates over the nominal window; P99 of totals instead of the window; the
engines not limited to those running; each condition of `is_complete` removed, one by one; None told as zero."""

from __future__ import annotations

from itertools import pairwise

import pytest

from autoscale.series import Totals
from autoscale.summary import ServedReplicas, attainment, fleet_view
from autoscale.view import FleetView, ReplicaCounts
from autoscale.window import Recent, Window
from slo.outcome import Outcome
from slo.snapshots import ClassLoad, ClassTraffic, EngineSnapshot, GpuUse, IngressSnapshot, KVUse
from tests.autoscale.fleet import P0, P1, P2, collection, completed, engine, ingress, latencies

ONE = ServedReplicas(target=1, running=1, starting=0, draining=0)
TWO = ServedReplicas(target=2, running=2, starting=0, draining=0)


def recent_of(*told: tuple[list[IngressSnapshot], list[EngineSnapshot]], silent: int = 0, step_s: float = 10) -> Recent:
    """What a window has after these periods; nobody was there at the start."""
    window = Window(window_s=30, period_s=10, stale_after_s=25)
    recent = window.add(collection(0), 0)
    for number, (ingresses, engines) in enumerate(told, start=1):
        now_s = number * step_s
        recent = window.add(collection(now_s, ingresses, engines, silent_engines=silent), now_s)
    return recent


def view_of(recent: Recent, served: ServedReplicas | None = ONE) -> FleetView:
    return fleet_view(recent, served, 30)


def test_view_of_nobody_knows_nothing() -> None:
    view = view_of(Window(30, 10, 25).add(collection(0), 0), None)
    assert view.replicas is None
    assert not view.is_complete
    for value in (
        view.saturation_ratio,
        view.slots_per_replica,
        view.preemptions_per_minute,
        view.gpu_utilisation_ratio,
        view.kv_hit_ratio,
        view.mean_batch_size,
        view.tokens_per_s,
        view.classes[P0].ttft_p99_s,
        view.classes[P0].tbt_p99_s,
    ):
        assert value is None
    assert view.num_waiting == 0


def test_requests_at_the_gate_wait_too() -> None:
    at_gate = {P0: ClassTraffic(num_in_flight=9, num_queued=7), P2: ClassTraffic(num_in_flight=5, num_queued=5)}
    told = (
        [ingress(classes=at_gate), ingress("other", classes=at_gate)],
        [engine(classes={P0: ClassLoad(num_waiting=1)})],
    )
    view = view_of(recent_of(told))
    assert (view.classes[P0].num_waiting, view.classes[P1].num_waiting, view.classes[P2].num_waiting) == (15, 0, 10)


def test_latencies_are_of_the_window_not_of_the_whole_past() -> None:
    def told(*values_s: float) -> tuple[list[IngressSnapshot], list[EngineSnapshot]]:
        traffic = ClassTraffic(ttft=latencies(values_s), tbt=latencies(values_s))
        return [ingress(classes={P0: traffic})], []

    slow, fast = [1.0] * 50, [0.02] * 500
    periods = [told(*slow)] + [told(*slow, *fast)] * 5
    views = [view_of(recent_of(*periods[:n])).classes[P0] for n in (1, 2, 4, 6)]
    for p99s in ([v.ttft_p99_s for v in views], [v.tbt_p99_s for v in views]):
        assert p99s[:2] == [pytest.approx(1.0, rel=0.1)] * 2
        assert p99s[2] == pytest.approx(0.02, rel=0.2)
        assert p99s[3] is None


def test_percentiles_come_from_the_sum_of_all_ingress_processes() -> None:
    quick = ingress("a", {P0: completed(1, tbt_s=[0.01] * 99)})
    slow = ingress("b", {P0: completed(1, tbt_s=[2.0] * 99)})
    p99_s = view_of(recent_of(([quick, slow], []))).classes[P0].tbt_p99_s
    assert p99_s == pytest.approx(2.0, rel=0.1)


def test_rates_are_over_the_time_that_there_really_was() -> None:
    told = ([ingress(classes={P1: completed(30, in_flight=3)})], [engine(steps=6, preempted=5)])
    view = view_of(recent_of(told, step_s=15))
    assert view.window_s == 30
    assert view.classes[P1].arrivals_per_s == pytest.approx(33 / 15)
    assert view.classes[P1].completions_per_s == pytest.approx(30 / 15)
    assert view.preemptions_per_minute == pytest.approx(5 * 60 / 15)
    assert view.tokens_per_s == pytest.approx(60 / 15)


def test_request_that_is_only_in_flight_has_arrived() -> None:
    view = view_of(recent_of(([ingress(classes={P0: ClassTraffic(num_in_flight=2)})], [])))
    assert view.classes[P0].arrivals_per_s == pytest.approx(0.2)
    assert view.classes[P0].completions_per_s == 0


@pytest.mark.parametrize(
    ("served", "expected"), [(None, 0), (ONE, 0), (ServedReplicas(0, 0, 0, 0), 5), (ServedReplicas(1, 0, 1, 0), 5)]
)
def test_requests_in_flight_without_any_replica_wait_for_one(served: ServedReplicas | None, expected: int) -> None:
    classes = {P0: ClassTraffic(num_in_flight=2), P2: ClassTraffic(num_in_flight=3)}
    assert view_of(recent_of(([ingress(classes=classes)], [])), served).num_without_replica == expected


def test_only_completed_requests_are_completions() -> None:
    traffic = ClassTraffic(outcomes={Outcome.COMPLETED: 1, Outcome.SHED: 9})
    view = view_of(recent_of(([ingress(classes={P0: traffic})], [])))
    assert view.classes[P0].completions_per_s == pytest.approx(0.1)


def test_requests_that_began_to_run_are_starts_whether_they_have_ended_or_not() -> None:
    def told(number: int) -> tuple[list[IngressSnapshot], list[EngineSnapshot]]:
        return [], [engine(classes={P0: ClassLoad(queue_wait=latencies([0.01] * number))})]

    view = view_of(recent_of(told(5), told(25)))
    assert view.classes[P0].starts_per_s == pytest.approx(25 / 20)
    assert view.classes[P1].starts_per_s == 0
    assert view_of(recent_of(([ingress()], []))).classes[P0].starts_per_s is None


def test_states_are_summed_over_replicas() -> None:
    load = ClassLoad(num_running=1, num_waiting=2, num_paused=3, num_swapped=4)
    engines = [engine("a", {P0: load, P2: load}, saturation=0.2), engine("b", {P0: load}, saturation=0.4)]
    view = view_of(recent_of(([], engines)), TWO)
    of_p0 = view.classes[P0]
    assert (of_p0.num_running, of_p0.num_waiting, of_p0.num_paused, of_p0.num_swapped) == (2, 4, 6, 8)
    assert view.classes[P2].num_unfinished == 10
    assert view.num_waiting == 6
    assert view.saturation_ratio == pytest.approx(0.3)


def test_replica_that_was_scaled_in_counts_no_more_though_it_looks_fresh() -> None:
    load = ClassLoad(num_running=1)
    both = [engine("gone", {P0: load}), engine("stays", {P0: load}, slots=4)]
    view = view_of(recent_of(([], both), ([], both[1:])), ONE)
    assert view.replicas == ReplicaCounts(target=1, running=1, starting=0, draining=0, fresh=1)
    assert view.classes[P0].num_running == 1
    assert view.slots_per_replica == 4


def test_gpu_utilisation_is_the_mean_over_all_gpus() -> None:
    gpus = [GpuUse(i, ratio, 0, 1) for i, ratio in enumerate((0.2, 0.4, 0.9))]
    engines = [engine("a", gpus=tuple(gpus[:2])), engine("b", gpus=tuple(gpus[2:]))]
    assert view_of(recent_of(([], engines)), TWO).gpu_utilisation_ratio == pytest.approx(0.5)


def test_kv_hits_are_of_the_blocks_that_could_have_hit() -> None:
    def with_hits(reusable: int, hit: int) -> EngineSnapshot:
        return engine(kv=KVUse(10, 5, 80, 70, num_reusable_blocks=reusable, num_hit_blocks=hit))

    assert view_of(recent_of(([], [with_hits(10, 9)]))).kv_hit_ratio == pytest.approx(0.9)
    assert view_of(recent_of(([], [with_hits(0, 0)]))).kv_hit_ratio is None


HERE = ([ingress()], [engine()])


@pytest.mark.parametrize(
    ("recent", "served", "is_complete"),
    [
        (recent_of(HERE), ONE, True),
        (recent_of(HERE), None, False),
        (recent_of(HERE), TWO, False),
        (recent_of(HERE, silent=1), ONE, False),
        (recent_of(([], [engine()])), ONE, False),
        (recent_of(([ingress()], [])), ONE, False),
        (recent_of(([ingress()], [])), ServedReplicas(0, 0, 0, 0), True),
        (recent_of(([ingress()], [])), ServedReplicas(1, 0, 1, 0), True),
        (recent_of(), ServedReplicas(0, 0, 0, 0), False),
    ],
    ids=[
        "all answer",
        "Serve does not",
        "one of two replicas does not",
        "one is silent",
        "no ingress does",
        "the replica does not",
        "none is there",
        "none is there yet",
        "first period",
    ],
)
def test_view_is_complete_when_everyone_who_runs_has_answered(
    recent: Recent, served: ServedReplicas | None, is_complete: bool
) -> None:
    assert view_of(recent, served).is_complete is is_complete


def test_view_is_incomplete_while_there_is_no_window() -> None:
    window = Window(30, 10, 25)
    views = [view_of(window.add(collection(t, [ingress()], [engine()]), t)) for t in (0, 10)]
    assert [v.is_complete for v in views] == [False, True]


def test_attainment_is_the_share_that_held() -> None:
    told = [
        ([ingress(classes={P0: ClassTraffic(ttft=latencies([0.1]), num_held=held, num_missed=missed)})], [])
        for held, missed in ((3, 1), (4, 4))
    ]
    ratios = [attainment(recent_of(*told[:n]).grown, P0) for n in (1, 2)]
    assert ratios == [0.75, 0.5]
    assert attainment(Totals(), P0) is None


def test_times_of_the_views_rise() -> None:
    window = Window(30, 10, 25)
    times_s = [view_of(window.add(collection(t), t)).now_s for t in (0, 9, 21)]
    assert all(a < b for a, b in pairwise(times_s))

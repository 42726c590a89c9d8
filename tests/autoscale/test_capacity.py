from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscale.capacity import FORGOTTEN_LOAD, Band, ClassRecord, LoadTrack
from autoscale.view import ClassView
from slo.settings import AutoscaleSettings, ClassTargets
from tests.autoscale.watched_fleet import BAD, GOOD, P0, P1, PERIOD_S, QUEUED

SETTINGS = AutoscaleSettings()
TARGETS = ClassTargets()


@pytest.mark.parametrize(
    ("band", "load", "expected"),
    [
        (Band(), 5, Band(5)),
        (Band(8), 5, Band(8)),
        (Band(2, 9), 5, Band(5, 9)),
        (Band(2, 5), 5, Band(5)),
        (Band(2, 4), 5, Band(5)),
    ],
)
def test_load_that_held_refutes_what_broke_at_no_more(band: Band, load: float, expected: Band) -> None:
    assert band.having_held(load) == expected


@pytest.mark.parametrize(
    ("band", "load", "expected"),
    [
        (Band(), 5, Band(0, 5)),
        (Band(8), 5, Band(5, 5)),
        (Band(2, 9), 5, Band(2, 5)),
        (Band(2, 4), 5, Band(2, 4)),
    ],
)
def test_load_that_broke_refutes_what_held_at_more(band: Band, load: float, expected: Band) -> None:
    assert band.having_broken(load) == expected


def test_band_loses_its_weight_with_time() -> None:
    assert Band(8, 10).aged(0.5) == Band(4, 20)
    assert Band(8, FORGOTTEN_LOAD).aged(0.5) == Band(4)
    assert Band(8).aged(1.0) == Band(8)


@pytest.mark.parametrize(("load", "expected"), [(0, 0), (7, 1), (7.1, 2), (70, 10)])
def test_band_tells_how_many_are_needed_with_headroom(load: float, expected: int) -> None:
    assert Band(0, 10).num_needed(load, 0.7) == expected


def test_band_tells_nothing_while_nothing_broke() -> None:
    assert Band(8).num_needed(100, 0.7) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["held", "broke", "aged"]), st.floats(0.01, 1000), st.floats(0.01, 1.0)),
        max_size=50,
    )
)
def test_band_holds_together_whatever_is_seen(events: list[tuple[str, float, float]]) -> None:
    band = Band()
    for kind, load, share in events:
        match kind:
            case "held":
                band = band.having_held(load)
                assert band.held >= load
            case "broke":
                band = band.having_broken(load)
                assert band.broke is not None
                assert band.broke <= load
            case _:
                band = band.aged(share)
        band.check_invariants()


def test_track_smooths_a_load_and_takes_the_side_that_is_safe() -> None:
    track = LoadTrack().watched(10, 0.5, 1.0)
    assert track.smoothed == 10
    track = track.watched(20, 0.5, 1.0)
    assert track.smoothed == 15
    assert (track.sustained(20), track.to_expect(20)) == (15, 20)
    assert (track.sustained(5), track.to_expect(5)) == (5, 15)
    assert (LoadTrack().sustained(5), LoadTrack().to_expect(5)) == (5, 5)


def record(p1: ClassView, periods: int = 20, before: ClassRecord | None = None, replicas: int = 2) -> ClassRecord:
    """The record of P1 after so many periods at rest."""
    classes, after = {P1: p1}, before or ClassRecord(P1)
    for _ in range(periods):
        after = after.watched(classes, TARGETS, SETTINGS, PERIOD_S).learned(classes, replicas, SETTINGS)
        after.check_invariants()
    return after


def test_record_learns_that_a_load_holds_in_both_measures() -> None:
    learned = record(GOOD)
    assert (learned.in_flight.band, learned.arrivals.band) == (Band(4), Band(0.5))


@pytest.mark.parametrize(
    "p1",
    [
        pytest.param(BAD, id="TBT"),
        pytest.param(replace(BAD, tbt_p99_s=0.02, ttft_p99_s=0.6), id="TTFT"),
        pytest.param(replace(BAD, tbt_p99_s=0.02, num_running=4, num_waiting=36, arrivals_per_s=1.5), id="queue"),
    ],
)
def test_record_learns_that_a_load_broke_only_after_some_periods(p1: ClassView) -> None:
    assert record(p1, SETTINGS.queue_periods - 1).in_flight.band == Band()
    learned = record(p1, SETTINGS.queue_periods)
    assert (learned.in_flight.band, learned.arrivals.band.broke) == (Band(0, 20), 0.5)


def test_record_learns_what_was_served_when_more_arrived() -> None:
    learned = record(replace(BAD, arrivals_per_s=100, completions_per_s=6))
    assert learned.arrivals.band.broke is not None
    assert isclose(learned.arrivals.band.broke, 3, rel_tol=0.02)


def test_record_learns_nothing_of_what_is_late_when_its_load_has_gone() -> None:
    """A fleet that has grown works off what waited: the latencies of the window are of a load that was higher."""
    broken = record(replace(BAD, num_running=200, arrivals_per_s=10, completions_per_s=8))
    receding = record(replace(BAD, num_running=10, arrivals_per_s=10, completions_per_s=20), before=broken, replicas=8)
    assert receding.is_broken(SETTINGS)
    assert receding.in_flight.band.broke == pytest.approx(100, rel=0.02)
    assert receding.arrivals.band.broke == pytest.approx(4, rel=0.02)


def test_record_learns_no_rate_while_nothing_has_ended() -> None:
    assert record(replace(BAD, completions_per_s=0)).arrivals.band == Band()


def test_record_takes_less_than_one_request_a_replica_for_one() -> None:
    assert record(replace(BAD, num_running=1)).in_flight.band.broke is not None
    assert record(replace(BAD, num_running=1)).in_flight.band.broke == pytest.approx(1.0, rel=0.02)


def test_record_learns_nothing_from_silence() -> None:
    assert record(replace(GOOD, ttft_p99_s=None, tbt_p99_s=None)).in_flight.band == Band()


def test_record_learns_nothing_from_a_period_over_a_target_that_may_be_an_accident() -> None:
    learned = record(replace(BAD, num_running=100), 1, before=record(GOOD))
    assert learned.in_flight.band.held == pytest.approx(4, rel=0.01)
    assert learned.in_flight.band.broke is None


def test_record_of_a_burst_is_of_what_was_there_before_and_of_what_came_only_in_part() -> None:
    learned = record(replace(GOOD, num_running=100), 1, before=record(GOOD))
    assert 4 < learned.in_flight.band.held < 12


def test_record_keeps_the_lowest_latencies_as_floors() -> None:
    learned = record(replace(GOOD, ttft_p99_s=0.3, tbt_p99_s=0.05), before=record(GOOD))
    assert learned.ttft_floor_s == pytest.approx(0.1, rel=0.01)
    assert learned.tbt_floor_s == pytest.approx(0.02, rel=0.01)
    learned = record(replace(GOOD, ttft_p99_s=0.05, tbt_p99_s=None), before=learned)
    assert learned.ttft_floor_s == 0.05
    assert learned.tbt_floor_s == pytest.approx(0.02, rel=0.02)


def test_record_needs_the_lower_number_of_its_two_measures() -> None:
    track = LoadTrack(band=Band(0, 10))
    crowd = {P1: ClassView(num_running=70, arrivals_per_s=14)}
    assert ClassRecord(P1, in_flight=track, arrivals=track).num_needed(crowd, 0.7) == 2
    assert ClassRecord(P1, in_flight=track).num_needed(crowd, 0.7) == 10
    assert ClassRecord(P1, arrivals=track).num_needed(crowd, 0.7) == 2
    assert ClassRecord(P1).num_needed(crowd, 0.7) is None


def test_record_counts_the_more_urgent_class_in() -> None:
    classes = {P0: GOOD, P1: GOOD}
    after = ClassRecord(P1).watched(classes, TARGETS, SETTINGS, PERIOD_S)
    assert (after.in_flight.smoothed, after.arrivals.smoothed) == (16, 2)


def test_record_counts_periods_in_a_row() -> None:
    assert (record(BAD, 4).num_over, record(QUEUED, 4).num_missing) == (4, 4)
    assert (record(GOOD, 1, record(BAD, 4)).num_over, record(GOOD, 1, record(QUEUED, 4)).num_missing) == (0, 0)

"""Mutations tried by hand, each found by a test here: the age counted from the latest snapshot, and not from the latest
word; an idle engine that ages; the scheduler's own id passed on; a second engine taken for the first."""

from __future__ import annotations

import pytest

from replicas.statistics import EngineStatistics
from slo.priority import PriorityClass
from slo.snapshots import ClassLoad, EngineSnapshot, GpuUse, KVUse


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(num_step_tokens: int = 7) -> EngineSnapshot:
    """What a scheduler tells."""
    kv = KVUse(10, 1, 16, 3)
    return EngineSnapshot("short", 0.0, {PriorityClass.P0: ClassLoad(1)}, 4, kv, num_step_tokens=num_step_tokens)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def statistics(clock: Clock) -> EngineStatistics:
    statistics = EngineStatistics(clock)
    statistics.begin(max_num_seqs=4, num_blocks=10)
    return statistics


def test_statistics_of_an_engine_that_has_done_nothing_are_zeros_of_its_size(statistics: EngineStatistics) -> None:
    snapshot = statistics.snapshot(())
    assert (snapshot.max_num_seqs, snapshot.kv, snapshot.age_s) == (4, KVUse(10, 0, 0, 0), 0.0)
    assert dict(snapshot.classes) == {priority: ClassLoad() for priority in PriorityClass}
    assert (snapshot.num_step_tokens, snapshot.batch_sizes.count) == (0, 0)


def test_statistics_pass_on_the_latest_that_was_told_under_an_id_of_their_own(statistics: EngineStatistics) -> None:
    before = statistics.snapshot(())
    statistics.note_heard(told(7))
    statistics.note_heard(told(9))
    gpus = (GpuUse(0, 0.5, 1, 2),)
    after = statistics.snapshot(gpus)
    assert (after.num_step_tokens, after.classes, after.gpus) == (9, told().classes, gpus)
    assert after.source_id == before.source_id != told().source_id


def test_statistics_of_two_engines_have_different_ids(statistics: EngineStatistics) -> None:
    other = EngineStatistics()
    other.begin(4, 10)
    assert statistics.snapshot(()).source_id != other.snapshot(()).source_id


def test_statistics_age_while_the_engine_is_silent(statistics: EngineStatistics, clock: Clock) -> None:
    statistics.note_heard(told())
    clock.now_s += 4.0
    assert statistics.snapshot(()).age_s == 4.0
    statistics.note_heard(None)
    clock.now_s += 0.5
    snapshot = statistics.snapshot(())
    assert (snapshot.age_s, snapshot.num_step_tokens) == (0.5, 7), "a word without a snapshot is a word"


def test_statistics_do_not_age_while_the_engine_is_idle(statistics: EngineStatistics, clock: Clock) -> None:
    statistics.note_heard(told())
    clock.now_s += 1000.0
    statistics.note_idle()
    assert statistics.snapshot(()).age_s == 0.0
    clock.now_s += 3.0
    assert statistics.snapshot(()).age_s == 3.0, "from the last time at which it was known to be idle"


def test_statistics_refuse_a_second_engine(statistics: EngineStatistics) -> None:
    with pytest.raises(ValueError, match="data_parallel_size must be 1"):
        statistics.begin(4, 10)


def test_statistics_have_nothing_to_say_before_there_is_an_engine() -> None:
    with pytest.raises(AssertionError, match="has not begun"):
        EngineStatistics().snapshot(())


def test_statistics_count_each_word_and_no_silence(statistics: EngineStatistics) -> None:
    before = statistics.num_heard
    statistics.note_heard(told())
    statistics.note_heard(None)
    statistics.note_idle()
    statistics.snapshot(())
    assert statistics.num_heard == before + 2


def test_statistics_know_how_long_steps_take_from_word_to_word(statistics: EngineStatistics, clock: Clock) -> None:
    assert statistics.step_s is None
    clock.now_s += 0.25
    statistics.note_heard(told())
    assert statistics.step_s == 0.25
    for _ in range(100):
        clock.now_s += 0.5
        statistics.note_heard(None)
    assert statistics.step_s == pytest.approx(0.5, rel=0.01)


def test_statistics_take_no_idle_time_for_a_step(statistics: EngineStatistics, clock: Clock) -> None:
    clock.now_s += 0.25
    statistics.note_heard(told())
    clock.now_s += 1000.0
    statistics.note_idle()
    clock.now_s += 0.25
    statistics.note_heard(told())
    assert statistics.step_s == 0.25

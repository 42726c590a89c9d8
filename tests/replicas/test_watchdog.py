"""When an engine is taken for lost: the rule on numbers, and the watchdog over a fake engine and a clock set by hand.

Mutations tried by hand, each found by a test here: all of a long gap counted as silence; a word that ends no silence;
the limit itself taken for too long; a dead engine passed over; answers not heard; steps not heard; idleness heard as a
word; a question left open; a hurry that wakes nobody, and one that never ends; an error that is no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas import watchdog
from replicas.statistics import EngineStatistics
from replicas.watchdog import LOOK_PERIOD_S, MAX_COUNTED_S, Loss, LossReason, Watch, Watchdog, judge

LIMIT_S = 5.0
GENEROUS_S = 60.0


@pytest.mark.parametrize(
    ("silent_s", "has_died", "reason"),
    [
        (0.0, False, None),
        (LIMIT_S, False, None),
        (LIMIT_S + 0.1, False, LossReason.STALLED),
        (0.0, True, LossReason.DIED),
        (LIMIT_S + 0.1, True, LossReason.DIED),
    ],
)
def test_engine_is_lost_when_it_died_or_was_silent_for_longer_than_the_limit(
    silent_s: float, has_died: bool, reason: LossReason | None
) -> None:
    loss = judge(Watch(100.0, silent_s), has_died, LIMIT_S)
    assert loss == (None if reason is None else Loss(reason, silent_s))


def test_look_adds_the_time_since_the_last_one_and_a_word_ends_the_silence() -> None:
    watch = Watch(10.0).look(11.0, has_spoken=False).look(12.5, has_spoken=False)
    assert watch == Watch(12.5, 2.5)
    assert watch.look(13.0, has_spoken=True) == Watch(13.0, 0.0)


def test_look_counts_little_of_the_time_in_which_this_process_did_not_run() -> None:
    assert Watch(10.0).look(10_000.0, has_spoken=False) == Watch(10_000.0, MAX_COUNTED_S)


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.booleans()), max_size=40))
def test_silence_is_never_longer_than_the_time_since_the_last_word_nor_than_the_looks_since_then(
    looks: list[tuple[float, bool]],
) -> None:
    now_s = heard_s = 0.0
    num_since, watch = 0, Watch(0.0)
    for passed_s, has_spoken in looks:
        now_s += passed_s
        heard_s, num_since = (now_s, 0) if has_spoken else (heard_s, num_since + 1)
        watch = watch.look(now_s, has_spoken)
        assert 0 <= watch.silent_s <= now_s - heard_s + 1e-6
        assert watch.silent_s <= num_since * MAX_COUNTED_S


class FakeEngine:
    """Answers questions unless it is frozen."""

    def __init__(self) -> None:
        self.errored = False
        self.num_asked = 0
        self.fault: Exception | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def freeze(self) -> None:
        self._goes_on.clear()

    def thaw(self) -> None:
        self._goes_on.set()

    async def is_paused(self) -> bool:
        self.num_asked += 1
        await self._goes_on.wait()
        if self.fault is not None:
            raise self.fault
        return False


class Scene:
    """A watchdog at which time passes by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.engine = FakeEngine()
        self.statistics = EngineStatistics(lambda: self.now_s)
        self.watchdog = Watchdog(self.engine, self.statistics, LIMIT_S, lambda: self.now_s)

    async def looks(self, num: int, period_s: float = LOOK_PERIOD_S) -> Loss | None:
        """So many looks, or until one finds the engine lost. Between them everything runs that can."""
        for _ in range(num):
            if (loss := self.watchdog.look()) is not None:
                return loss
            for _ in range(5):
                await asyncio.sleep(0)
            self.now_s += period_s
        return None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    scene.engine.thaw()
    await asyncio.sleep(0)


async def test_engine_that_answers_is_never_lost_when_it_has_no_work(scene: Scene) -> None:
    assert await scene.looks(100) is None
    assert scene.engine.num_asked == 100


async def test_frozen_engine_is_found_when_it_has_no_work(scene: Scene) -> None:
    await scene.looks(3)
    scene.engine.freeze()
    loss = await scene.looks(100)
    assert loss is not None
    assert loss.reason is LossReason.STALLED
    assert LIMIT_S < loss.silent_s <= LIMIT_S + MAX_COUNTED_S


async def test_engine_in_a_long_step_is_not_lost_within_the_limit(scene: Scene) -> None:
    await scene.looks(1)
    scene.engine.freeze()
    assert await scene.looks(int(LIMIT_S / LOOK_PERIOD_S)) is None
    scene.engine.thaw()
    assert await scene.looks(100) is None


async def test_engine_that_steps_is_not_lost_when_its_answer_is_slow(scene: Scene) -> None:
    scene.engine.freeze()
    for _ in range(100):
        scene.statistics.note_heard(None)
        assert await scene.looks(1) is None
    assert scene.engine.num_asked == 1, "one question is open at a time"


async def test_idle_engine_is_not_taken_for_one_that_speaks(scene: Scene) -> None:
    """That it is known to be idle says nothing of its process."""
    scene.engine.freeze()
    for _ in range(100):
        scene.statistics.note_idle()
        if await scene.looks(1) is not None:
            break
    else:
        pytest.fail("not found")


async def test_engine_is_not_blamed_when_the_replica_itself_was_stopped(scene: Scene) -> None:
    await scene.looks(1)
    scene.engine.freeze()
    await scene.looks(1, period_s=3600.0)
    assert await scene.looks(1) is None
    scene.engine.thaw()
    assert await scene.looks(10) is None


async def test_dead_engine_is_lost_at_the_next_look(scene: Scene) -> None:
    await scene.looks(3)
    scene.engine.errored = True
    assert await scene.looks(1) == Loss(LossReason.DIED, 0.0)


async def test_error_is_an_answer_and_is_told_when_the_engine_lives(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.engine.fault = TypeError("no such method")
    with caplog.at_level(logging.WARNING, "expresslane.replica"):
        assert await scene.looks(100) is None
    assert "error=TypeError reason=question_failed" in caplog.text


async def test_until_lost_returns_when_told_to_look_and_leaves_no_question(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_PERIOD_S", 1e6)
    scene.engine.freeze()
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(scene.watchdog.until_lost())
    await asyncio.sleep(0)
    scene.engine.errored = True
    scene.watchdog.look_now()
    loss = await asyncio.wait_for(waiting, GENEROUS_S)
    await asyncio.sleep(0)
    assert loss.reason is LossReason.DIED
    assert asyncio.all_tasks() == before


async def test_until_lost_looks_once_when_told_to_look_and_the_engine_lives(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_PERIOD_S", 1e6)
    waiting = asyncio.create_task(scene.watchdog.until_lost())
    await holds(lambda: scene.engine.num_asked == 1)
    scene.watchdog.look_now()
    for _ in range(100):
        await asyncio.sleep(0)
    assert scene.engine.num_asked == 2
    waiting.cancel()


async def test_until_lost_looks_again_and_again_by_itself(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_PERIOD_S", 0.0)
    waiting = asyncio.create_task(scene.watchdog.until_lost())
    await holds(lambda: scene.engine.num_asked >= 5)
    assert not waiting.done()
    scene.engine.errored = True
    assert (await asyncio.wait_for(waiting, GENEROUS_S)).reason is LossReason.DIED


async def holds(condition: Callable[[], bool]) -> None:
    """Waits until it does."""
    async with asyncio.timeout(GENEROUS_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)

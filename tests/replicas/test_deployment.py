"""The deployment's methods over a fake engine.

Mutations tried by hand, each found by a test here: a dead engine that tells; a busy one taken for idle; the age of a
request's first step counted from the last one before it came; a lost engine that is asked; a lost engine's processes
left alone; an exit before the calls have their failures; none when a call never ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from replicas import deployment
from replicas.calls import Calls
from replicas.deployment import Replica
from replicas.routing_stats import RoutingLedger
from replicas.statistics import EngineStatistics
from replicas.watchdog import Loss, LossReason
from slo.errors import ReplicaLost
from slo.messages import Document, Endpoint, Failure, GenerateCall, Reply
from slo.priority import PriorityClass
from slo.snapshots import EngineSnapshot, GpuUse, KVUse

GPUS = (GpuUse(3, 0.5, 1, 2),)
CALL = GenerateCall(Endpoint.CHAT, {}, PriorityClass.P1, "id-1")
TOLD = EngineSnapshot("short", 0.0, {}, 8, KVUse(10, 3, 48, 40), num_step_tokens=7)
GENEROUS_S = 60.0


class FakeEngine:
    """As much of `AsyncLLM` as the deployment asks."""

    def __init__(self, told: list[str]) -> None:
        self._told = told
        self.errored = False
        self.num_unfinished = 0

    def get_num_unfinished_requests(self) -> int:
        return self.num_unfinished

    def shutdown(self) -> None:
        self._told.append("engine shut down")


class FakeGpus:
    def read(self) -> tuple[GpuUse, ...]:
        return GPUS


class FakeFrontend:
    """Answers once it may."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.reply: Reply = Document("{}")

    async def generate(self, _call: GenerateCall) -> AsyncGenerator[Reply, None]:
        self.num_asked += 1
        await self.answers.wait()
        yield self.reply


class FakeProcesses:
    pids = (17, 18)

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def kill(self) -> None:
        self._told.append("killed")

    def release(self) -> None:
        self._told.append("released")


class FakeWatchdog:
    """Finds the engine lost when it is told so."""

    def __init__(self) -> None:
        self.loss: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self.num_hurried = 0

    async def until_lost(self) -> Loss:
        return await self.loss

    def look_now(self) -> None:
        self.num_hurried += 1


class Scene:
    """A replica that never started an engine, on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[str] = []
        """What happened to the process, in order."""
        self.engine = FakeEngine(self.told)
        self.statistics = EngineStatistics(lambda: self.now_s)
        self.statistics.begin(8, 10)
        self.frontend = FakeFrontend()
        self.watchdog = FakeWatchdog()
        self.watching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.replica = Replica.__new__(Replica)
        parts: dict[str, Any] = {
            "_engine": self.engine,
            "_gpus": FakeGpus(),
            "_statistics": self.statistics,
            "_openai": self.frontend,
            "_processes": FakeProcesses(self.told),
            "_calls": Calls(),
            "_ledger": RoutingLedger(self.statistics, 16),
            "_loss": None,
            "_watchdog": self.watchdog,
            "_watching": self.watching,
        }
        for name, part in parts.items():
            setattr(self.replica, name, part)


async def test_snapshot_has_what_the_engine_told_and_the_gpus() -> None:
    scene = Scene()
    scene.statistics.note_heard(TOLD)
    snapshot = await scene.replica.snapshot()
    assert (snapshot.num_step_tokens, snapshot.gpus) == (7, GPUS)


@pytest.mark.parametrize(("num_unfinished", "age_s"), [(0, 0.0), (1, 60.0)])
async def test_snapshot_is_fresh_when_the_engine_is_idle_and_as_old_as_its_last_word_when_it_is_not(
    num_unfinished: int, age_s: float
) -> None:
    scene = Scene()
    scene.statistics.note_heard(TOLD)
    scene.now_s += 60.0
    scene.engine.num_unfinished = num_unfinished
    assert (await scene.replica.snapshot()).age_s == age_s


async def test_snapshot_of_an_engine_that_was_idle_ages_from_its_first_request_on() -> None:
    scene = Scene()
    scene.now_s += 1000.0
    assert [reply async for reply in scene.replica.generate(CALL)] == [Document("{}")]
    scene.engine.num_unfinished = 1
    scene.now_s += 2.0
    assert [reply async for reply in scene.replica.generate(CALL)] == [Document("{}")]
    assert (await scene.replica.snapshot()).age_s == 2.0


async def test_snapshot_of_a_dead_engine_is_refused() -> None:
    scene = Scene()
    scene.engine.errored = True
    with pytest.raises(RuntimeError, match="the engine core has died"):
        await scene.replica.snapshot()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One whose process only notes that it was to exit, and waits for nothing that is on its way."""
    scene = Scene()
    monkeypatch.setattr(deployment, "LEAVING_S", 0.0)
    monkeypatch.setattr(deployment, "HOLD_S", 0.0)
    monkeypatch.setattr(deployment.os, "_exit", lambda code: scene.told.append(f"exit {code}"))
    return scene


async def answers(scene: Scene) -> list[Reply]:
    return [reply async for reply in scene.replica.generate(CALL)]


async def test_lost_engine_is_killed_and_the_process_ends_after_its_calls(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.frontend.answers.clear()
    call = asyncio.create_task(answers(scene))
    watching = asyncio.create_task(scene.replica._watch())
    scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
    with caplog.at_level(logging.ERROR, "expresslane.replica"):
        await holds(lambda: scene.told == ["killed"])
        for _ in range(10):
            await asyncio.sleep(0)
        assert scene.told == ["killed"], "it ended before its call had an answer"
        scene.frontend.answers.set()
        await asyncio.wait_for(watching, GENEROUS_S)
    assert call.done()
    assert scene.told == ["killed", "exit 1"]
    assert "reason=engine_stalled silent_s=21.5 calls=1 pids=17,18" in caplog.text
    assert "reason=replica_ends calls=0" in caplog.text


async def test_process_ends_when_a_call_never_does(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "FAREWELL_LIMIT_S", 0.0)
    scene.frontend.answers.clear()
    call = asyncio.create_task(answers(scene))
    await asyncio.sleep(0)
    scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
    await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    assert scene.told == ["killed", "exit 1"]
    call.cancel()


async def test_call_is_not_tried_when_the_engine_is_lost(scene: Scene) -> None:
    scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
    await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    (failure,) = await answers(scene)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ReplicaLost)
    assert scene.frontend.num_asked == 0


async def test_call_is_not_tried_and_the_watchdog_looks_when_the_engine_has_died(scene: Scene) -> None:
    scene.engine.errored = True
    (failure,) = await answers(scene)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ReplicaLost)
    assert (scene.frontend.num_asked, scene.watchdog.num_hurried) == (0, 1)


async def test_call_to_a_lost_engine_is_held_and_does_not_hold_up_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the process ends it: so Serve learns that the replica is dead, and sends it nothing more."""
    monkeypatch.setattr(deployment, "HOLD_S", 1e6)
    monkeypatch.setattr(deployment, "FAREWELL_LIMIT_S", 1e6)
    scene.engine.errored = True
    call = asyncio.create_task(answers(scene))
    await asyncio.sleep(0)
    scene.watchdog.loss.set_result(Loss(LossReason.DIED, 0.0))
    await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    assert not call.done()
    assert scene.told == ["killed", "exit 1"]
    call.cancel()


async def test_watchdog_looks_when_a_call_ends_with_the_engine(scene: Scene) -> None:
    scene.frontend.answers.clear()
    scene.frontend.reply = Failure(ReplicaLost("died"))
    call = asyncio.create_task(answers(scene))
    await asyncio.sleep(0)
    assert scene.watchdog.num_hurried == 0
    scene.engine.errored = True
    scene.frontend.answers.set()
    assert await call == [scene.frontend.reply]
    assert scene.watchdog.num_hurried == 1


async def test_call_that_is_over_is_counted_no_more_when_its_client_left(scene: Scene) -> None:
    scene.frontend.answers.clear()
    call = asyncio.create_task(answers(scene))
    await asyncio.sleep(0)
    assert scene.replica._calls.num == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert scene.replica._calls.num == 0


async def test_health_is_good_while_the_engine_works(scene: Scene) -> None:
    await scene.replica.check_health()


async def test_health_is_bad_when_the_engine_is_lost(scene: Scene) -> None:
    scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
    await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    with pytest.raises(RuntimeError, match="engine_stalled"):
        await scene.replica.check_health()


async def test_health_is_bad_when_nobody_watches(scene: Scene) -> None:
    scene.watching.set_result(None)
    with pytest.raises(RuntimeError, match="the watchdog has ended"):
        await scene.replica.check_health()


async def test_shutdown_stops_watching_before_the_engine_ends_and_releases_its_processes(scene: Scene) -> None:
    scene.replica.__del__()
    assert scene.watching.cancelled()
    assert scene.told == ["engine shut down", "released"]


async def holds(condition: Callable[[], bool]) -> None:
    """Waits until it does."""
    async with asyncio.timeout(GENEROUS_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def test_routing_stats_tell_what_is_under_way_and_who_sent_it(scene: Scene) -> None:
    scene.frontend.answers.clear()

    async def answered() -> list[Reply]:
        return [reply async for reply in scene.replica.generate(CALL, router_id="ingress-1")]

    call = asyncio.create_task(answered())
    await holds(lambda: scene.frontend.num_asked == 1)
    assert scene.replica.record_routing_stats()["ongoing"] == {"ingress-1": (0, 1, 0)}
    scene.frontend.answers.set()
    await call
    assert scene.replica.record_routing_stats()["ongoing"] == {}


async def test_routing_stats_say_that_a_lost_engine_does_not_serve(scene: Scene) -> None:
    assert scene.replica.record_routing_stats()["is_serving"]
    scene.engine.errored = True
    assert not scene.replica.record_routing_stats()["is_serving"]
    scene.engine.errored = False
    scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
    await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    assert not scene.replica.record_routing_stats()["is_serving"]


@pytest.mark.parametrize("has_died", [True, False])
async def test_models_of_a_lost_engine_are_refused_in_our_words(scene: Scene, has_died: bool) -> None:
    """As it is: over gRPC, Serve raises the very exception in the ingress."""
    scene.engine.errored = has_died
    if not has_died:
        scene.watchdog.loss.set_result(Loss(LossReason.STALLED, 21.5))
        await asyncio.wait_for(scene.replica._watch(), GENEROUS_S)
    with pytest.raises(ReplicaLost):
        await scene.replica.models()

"""The deployment's methods over a fake engine.

Mutations tried by hand, each found by a test here: a dead engine that tells; a busy one taken for idle; the age of a
request's first step counted from the last one before it came.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from replicas.deployment import Replica
from replicas.statistics import EngineStatistics
from slo.messages import Document, Endpoint, GenerateCall, Reply
from slo.priority import PriorityClass
from slo.snapshots import EngineSnapshot, GpuUse, KVUse

GPUS = (GpuUse(3, 0.5, 1, 2),)
CALL = GenerateCall(Endpoint.CHAT, {}, PriorityClass.P1, "id-1")
TOLD = EngineSnapshot("short", 0.0, {}, 8, KVUse(10, 3, 48, 40), num_step_tokens=7)


class FakeEngine:
    """As much of `AsyncLLM` as the deployment asks."""

    def __init__(self) -> None:
        self.errored = False
        self.num_unfinished = 0

    def get_num_unfinished_requests(self) -> int:
        return self.num_unfinished

    def shutdown(self) -> None:
        """Nothing to end."""


class FakeGpus:
    def read(self) -> tuple[GpuUse, ...]:
        return GPUS


class FakeFrontend:
    async def generate(self, _call: GenerateCall) -> AsyncGenerator[Reply, None]:
        yield Document("{}")


class Scene:
    """A replica that never started an engine, on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.engine = FakeEngine()
        self.statistics = EngineStatistics(lambda: self.now_s)
        self.statistics.begin(8, 10)
        self.replica = Replica.__new__(Replica)
        parts: dict[str, Any] = {
            "_engine": self.engine,
            "_gpus": FakeGpus(),
            "_statistics": self.statistics,
            "_openai": FakeFrontend(),
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

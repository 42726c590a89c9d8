"""Mutations tried, each seen by a test here: one's exception passed on; no time limit; the slow one not cancelled; the
age not subtracted; a wrong kind of answer taken; silence not counted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID
from ray.serve._private.replica_result import ReplicaResult
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentBroadcastResponse, DeploymentHandle

from autoscale.collector import METHOD, ServeCollector
from slo.snapshots import BatchSnapshot, EngineSnapshot, IngressSnapshot
from tests.autoscale.fleet import FakeClock, engine, ingress

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Replica", "expresslane"))


class FakeResult:
    """One process's answer, as Serve gives it: a value, an exception, or never."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome
        self.num_cancels = 0

    async def get_async(self) -> object:
        if isinstance(self._outcome, asyncio.Event):
            await self._outcome.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        self.num_cancels += 1


class FakeHandle:
    """A deployment's handle: its processes' outcomes, or what asking them raises."""

    def __init__(self, *outcomes: object, error: Exception | None = None, hangs: bool = False) -> None:
        self.results = [FakeResult(o) for o in outcomes]
        self._error = error
        self._hangs = hangs
        self.methods: list[tuple[str, ...]] = []

    def broadcast(self, method: str, *arguments: str) -> FakeHandle:
        self.methods.append((method, *arguments))
        return self

    async def _fetch_replica_results_async(self) -> list[FakeResult]:
        if self._hangs:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return self.results


def collector(replicas: FakeHandle, ingresses: FakeHandle, timeout_s: float = 30) -> ServeCollector:
    clock = FakeClock()
    return ServeCollector(handle(replicas), handle(ingresses), timeout_s, "tiny", clock)


def handle(fake: FakeHandle) -> Callable[[], DeploymentHandle[Any]]:
    return lambda: fake  # type: ignore[return-value]


def ids(answers: tuple[Any, ...]) -> list[str]:
    return [a.snapshot.source_id for a in answers]


async def test_everyone_is_asked_for_its_snapshot() -> None:
    replicas, ingresses = FakeHandle(engine("a"), engine("b")), FakeHandle(ingress("i"), ingress("j"))
    collected = await collector(replicas, ingresses).collect()
    assert ids(collected.engines) == ["a", "b"]
    assert ids(collected.ingresses) == ["i", "j"]
    assert (collected.num_silent_engines, collected.num_silent_ingresses) == (0, 0)
    assert (replicas.methods, ingresses.methods) == ([(METHOD,)], [(METHOD, "tiny")])
    assert METHOD == "snapshot"


async def test_answers_are_stamped_by_the_collectors_clock_less_their_age() -> None:
    collected = await collector(FakeHandle(engine(age_s=4)), FakeHandle(ingress(age_s=0))).collect()
    assert collected.engines[0].taken_s == 996
    assert collected.ingresses[0].taken_s == 1000


@pytest.mark.parametrize(
    "failing",
    [
        ray_errors.ActorDiedError(),
        ray_errors.ActorUnavailableError("restarting", None),
        ray_errors.RayTaskError("snapshot", "traceback", ValueError("x"), ip="127.0.0.1"),
        ValueError("a replica of another version"),
        "no snapshot",
        ingress("of the wrong kind"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_one_that_fails_is_absent_and_the_others_are_there(failing: object) -> None:
    collected = await collector(FakeHandle(engine("a"), failing, engine("c")), FakeHandle(ingress("i"))).collect()
    assert ids(collected.engines) == ["a", "c"]
    assert collected.num_silent_engines == 1
    assert collected.num_silent_ingresses == 0
    assert ids(collected.ingresses) == ["i"]


async def test_one_that_is_slow_is_given_up_and_the_others_are_there() -> None:
    replicas = FakeHandle(engine("a"), asyncio.Event())
    collected = await collector(replicas, FakeHandle(ingress("i")), timeout_s=0.05).collect()
    assert ids(collected.engines) == ["a"]
    assert collected.num_silent_engines == 1
    assert [r.num_cancels for r in replicas.results] == [0, 1]
    assert ids(collected.ingresses) == ["i"]


async def test_silence_is_counted_when_serve_does_not_say_who_is_there() -> None:
    collected = await collector(FakeHandle(hangs=True), FakeHandle(ingress("i")), timeout_s=0.05).collect()
    assert collected.engines == ()
    assert collected.num_silent_engines == 1
    assert ids(collected.ingresses) == ["i"]


@pytest.mark.parametrize(
    ("error", "num_silent"),
    [(UNAVAILABLE, 0), (RayServeException("no application"), 0), (ray_errors.RaySystemError("no raylet"), 1)],
    ids=lambda value: type(value).__name__,
)
async def test_nobody_answers_when_there_is_nobody_to_ask(error: Exception, num_silent: int) -> None:
    collected = await collector(FakeHandle(error=error), FakeHandle(error=error)).collect()
    assert (collected.engines, collected.ingresses) == ((), ())
    assert (collected.num_silent_engines, collected.num_silent_ingresses) == (num_silent, num_silent)


async def test_owner_of_the_batches_is_asked_too_and_its_silence_is_its_own() -> None:
    for outcome, told, num_silent in ((BatchSnapshot("o", 0), ["o"], 0), (engine("of the wrong kind"), [], 1)):
        asked = ServeCollector(
            handle(FakeHandle(engine("a"))), handle(FakeHandle()), 30, "tiny", batches=handle(FakeHandle(outcome))
        )
        collected = await asked.collect()
        assert (ids(collected.batches), collected.num_silent_batches) == (told, num_silent)
        assert (ids(collected.engines), collected.num_silent_engines) == (["a"], 0)


async def test_handle_is_asked_for_again_while_serve_does_not_know_the_deployment() -> None:
    known = False

    def ingresses() -> DeploymentHandle[Any]:
        if not known:
            raise RayServeException("Deployment 'Ingress' does not exist")
        return FakeHandle(ingress("i"))  # type: ignore[return-value]

    asking = ServeCollector(handle(FakeHandle(engine("a"))), ingresses, 30, "tiny")
    assert (await asking.collect()).ingresses == ()
    known = True
    assert ids((await asking.collect()).ingresses) == ["i"]


async def test_cancelling_the_collector_cancels_its_asking() -> None:
    task = asyncio.create_task(collector(FakeHandle(asyncio.Event()), FakeHandle(ingress("i"))).collect())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_serves_private_points_are_where_the_collector_looks_for_them() -> None:
    fetch = DeploymentBroadcastResponse._fetch_replica_results_async
    assert inspect.iscoroutinefunction(fetch)
    assert list(inspect.signature(fetch).parameters) == ["self"]
    assert inspect.iscoroutinefunction(ReplicaResult.get_async)
    assert callable(ReplicaResult.cancel)
    assert "method_name" in inspect.signature(DeploymentHandle.broadcast).parameters


def test_kinds_that_are_asked_for_are_the_contracts() -> None:
    assert {EngineSnapshot.__module__, IngressSnapshot.__module__} == {"slo.snapshots"}

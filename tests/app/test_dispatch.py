import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID, RequestMetadata
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentResponseGenerator

from app.dispatch import BACK_PRESSURE_RETRY_S, ServeDispatcher, from_ray
from slo.errors import EngineFailed, Expired, Rejected, RejectReason, ReplicaLost, ServingError, Shed
from slo.messages import Chunk, Endpoint, Failure, GenerateCall, Reply
from slo.priority import PriorityClass
from slo.settings.gate import AdmissionSettings, ClassAdmission

PATIENCE_S = 0.01
CALL = GenerateCall(Endpoint.CHAT, {"messages": []}, PriorityClass.P1, "id-1")


def task_error(cause: Exception) -> ray_errors.RayTaskError:
    return ray_errors.RayTaskError("generate", "a traceback with a prompt", cause, ip="127.0.0.1")


class FakeReplies:
    """What Serve's streaming handle gives: `replies`, then `error` if there is one, else it waits for nothing."""

    def __init__(self, replies: list[Reply], error: BaseException | None) -> None:
        self._replies, self._error = replies, error
        self.num_cancels = 0
        self._replica_result_future = asyncio.get_running_loop().create_future()
        self._replica_result_future.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Reply]:
        for reply in self._replies:
            yield reply
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        self.num_cancels += 1


class FakeHandle:
    """The part of Serve's `DeploymentHandle` that the dispatcher uses; `handle.method.remote(...)` answers."""

    def __init__(self, replies: FakeReplies | None = None, models: Any = None) -> None:
        self._replies, self._models = replies, models
        self.calls: list[GenerateCall] = []

    def options(self, *, stream: bool) -> "FakeHandle":
        assert stream
        return self

    @property
    def generate(self) -> "FakeMethod":
        return FakeMethod(self._answer)

    def _answer(self, call: GenerateCall) -> FakeReplies:
        self.calls.append(call)
        assert self._replies is not None
        return self._replies

    @property
    def models(self) -> "FakeMethod":
        return FakeMethod(self._list_models)

    async def _list_models(self) -> Any:
        if isinstance(self._models, Exception):
            raise self._models
        if isinstance(self._models, asyncio.Event):
            await self._models.wait()
        return self._models


class FakeMethod:
    def __init__(self, remote: Any) -> None:
        self.remote = remote


def dispatcher_over(handle: FakeHandle, answer_timeout_s: float = 30) -> ServeDispatcher:
    admission = AdmissionSettings(p1=ClassAdmission(queue_timeout_s=PATIENCE_S))
    return ServeDispatcher(handle, answer_timeout_s, admission)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BackPressureError(8, 4), Shed),
        (DeploymentUnavailableError(DeploymentID("Replica", "expresslane")), ReplicaLost),
        (ray_errors.RayActorError(), ReplicaLost),
        (ray_errors.ActorDiedError(), ReplicaLost),
        (ray_errors.ActorUnavailableError("restarting", None), ReplicaLost),
        (ray_errors.WorkerCrashedError(), ReplicaLost),
        (ray_errors.RaySystemError("no raylet"), ReplicaLost),
        (ray_errors.ObjectLostError("00" * 28, "", ""), ReplicaLost),
        (ray_errors.GetTimeoutError("slow"), ReplicaLost),
        (RequestCancelledError("id-1"), ReplicaLost),
        (task_error(ValueError("a prompt")), EngineFailed),
        (task_error(RuntimeError("the engine core has died")).make_dual_exception_instance(), EngineFailed),
        (task_error(BackPressureError(8, 4)).make_dual_exception_instance(), Shed),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_from_ray_gives_our_error(error: Exception, expected: type[ServingError]) -> None:
    ours = from_ray(error)
    assert type(ours) is expected
    assert "prompt" not in ours.message
    assert type(pickle.loads(pickle.dumps(ours))) is expected


def test_from_ray_tells_how_long_to_wait_when_the_queue_is_full() -> None:
    shed = from_ray(BackPressureError(8, 4))
    assert isinstance(shed, Shed)
    assert shed.retry_after_s == BACK_PRESSURE_RETRY_S


@pytest.mark.parametrize("dual", [False, True])
def test_from_ray_unwraps_our_own_error_when_the_replica_raised_it(dual: bool) -> None:
    cause = Rejected("bad", "model", RejectReason.UNKNOWN_MODEL)
    error = task_error(cause)
    assert from_ray(error.make_dual_exception_instance() if dual else error) is cause


async def test_generate_yields_the_replicas_replies_and_cancels_the_call_once_it_ended() -> None:
    replies = FakeReplies([Chunk("a"), Chunk("b")], None)
    handle = FakeHandle(replies)
    assert [reply async for reply in dispatcher_over(handle).generate(CALL)] == [Chunk("a"), Chunk("b")]
    assert handle.calls == [CALL]
    assert replies.num_cancels == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ray_errors.ActorDiedError(), ReplicaLost),
        (BackPressureError(8, 4), Shed),
        (DeploymentUnavailableError(DeploymentID("Replica", "expresslane")), ReplicaLost),
        (task_error(ValueError("x")), EngineFailed),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_generate_yields_a_failure_when_ray_fails(error: Exception, expected: type[ServingError]) -> None:
    replies = FakeReplies([Chunk("a")], error)
    first, last = [reply async for reply in dispatcher_over(FakeHandle(replies)).generate(CALL)]
    assert first == Chunk("a")
    assert isinstance(last, Failure)
    assert type(last.error) is expected
    assert replies.num_cancels == 1


async def test_generate_cancels_the_replicas_work_when_it_is_closed() -> None:
    replies = FakeReplies([Chunk("a"), Chunk("b")], None)
    generator = dispatcher_over(FakeHandle(replies)).generate(CALL)
    assert await anext(generator) == Chunk("a")
    assert replies.num_cancels == 0
    await generator.aclose()
    assert replies.num_cancels == 1


async def test_generate_raises_and_cancels_when_its_task_is_cancelled() -> None:
    replies = FakeReplies([], asyncio.CancelledError())
    task = asyncio.ensure_future(anext(dispatcher_over(FakeHandle(replies)).generate(CALL)))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replies.num_cancels == 1


async def test_generate_yields_a_failure_when_the_call_was_ended_and_not_its_task() -> None:
    replies = FakeReplies([Chunk("a")], asyncio.CancelledError())
    first, last = [reply async for reply in dispatcher_over(FakeHandle(replies)).generate(CALL)]
    assert first == Chunk("a")
    assert isinstance(last, Failure)
    assert type(last.error) is ReplicaLost


async def test_call_that_no_replica_takes_expires_with_its_class() -> None:
    """With what Serve's handle really gives."""
    taken: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    metadata = RequestMetadata("id-1", "internal", call_method="generate", is_streaming=True)
    replies = DeploymentResponseGenerator(taken, metadata, _is_router_running_in_separate_loop=False)
    (last,) = [reply async for reply in dispatcher_over(FakeHandle(replies)).generate(CALL)]  # type: ignore[arg-type]
    assert isinstance(last, Failure)
    assert type(last.error) is Expired
    assert f"in {PATIENCE_S:g} s" in last.error.message
    assert "P1" in last.error.message
    assert taken.cancelled(), "the router looks for a replica no more"


async def test_models_gives_what_the_replica_lists() -> None:
    assert await dispatcher_over(FakeHandle(models=[{"id": "tiny"}])).models() == [{"id": "tiny"}]


@pytest.mark.parametrize(
    "failing",
    [ray_errors.ActorDiedError(), DeploymentUnavailableError(DeploymentID("Replica", "expresslane"))],
    ids=lambda error: type(error).__name__,
)
async def test_models_raises_replica_lost_when_no_replica_can_tell(failing: Exception) -> None:
    with pytest.raises(ReplicaLost):
        await dispatcher_over(FakeHandle(models=failing)).models()


async def test_models_raises_replica_lost_when_no_replica_answers_in_time() -> None:
    with pytest.raises(ReplicaLost, match="no replica answered in time"):
        await dispatcher_over(FakeHandle(models=asyncio.Event()), answer_timeout_s=0).models()

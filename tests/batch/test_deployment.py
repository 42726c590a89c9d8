"""The owner as Serve starts it, and its way to the ingress, over a fake of Serve's handle; the real ones are in
tests/e2e/test_batches.py.

Mutations tried, each seen by a test here: an error of Serve's passed on; a call that is given up goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from batch import deployment
from batch.database import DatabaseError
from batch.deployment import Batches, ServeLineDesk
from batch.running import DeskAway
from slo.batch import LineAnswer, LineCall, NewFile
from slo.errors import BatchesAway
from slo.messages import Endpoint
from slo.settings import Settings
from tests.batch.scene import settings_of

CALL = LineCall("batch_req_1_1", Endpoint.CHAT, "chat", b"{}")
ANSWER = LineAnswer(200, "{}", None, 1)


class FakeResponse:
    """What a call over a handle gives: a value, an exception, or nothing until it is set."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome
        self.num_cancels = 0

    def __await__(self) -> Iterator[Any]:
        return self._wait().__await__()

    async def _wait(self) -> object:
        if isinstance(self._outcome, asyncio.Event):
            await self._outcome.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        self.num_cancels += 1


class FakeHandle:
    """The ingress's handle, of which `answer_line` alone is asked."""

    def __init__(self, outcome: object) -> None:
        self.response = FakeResponse(outcome)
        self.answer_line = self
        self.calls: list[LineCall] = []

    def remote(self, call: LineCall) -> FakeResponse:
        self.calls.append(call)
        return self.response


def desk(handle: FakeHandle) -> ServeLineDesk:
    return ServeLineDesk(lambda: handle)  # type: ignore[arg-type,return-value]


async def test_line_goes_to_the_ingress_and_its_answer_comes_back() -> None:
    handle = FakeHandle(ANSWER)
    assert await desk(handle).answer(CALL) is ANSWER
    assert handle.calls == [CALL]


@pytest.mark.parametrize(
    "error",
    [
        ray_errors.ActorDiedError(),
        ray_errors.ActorUnavailableError("restarting", None),
        ray_errors.RayTaskError("answer_line", "traceback", ZeroDivisionError("inside"), ip="127.0.0.1"),
        DeploymentUnavailableError(DeploymentID("Ingress", "expresslane")),
        BackPressureError(8, 4),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_desk_is_away_when_ray_fails(error: Exception) -> None:
    with pytest.raises(DeskAway):
        await desk(FakeHandle(error)).answer(CALL)


async def test_desk_is_away_while_serve_does_not_know_the_ingress_and_is_asked_again() -> None:
    outcomes: list[FakeHandle | Exception] = [RayServeException("no application"), FakeHandle(ANSWER)]

    def handle() -> Any:
        if isinstance(first := outcomes.pop(0), Exception):
            raise first
        return first

    asked = ServeLineDesk(handle)
    with pytest.raises(DeskAway):
        await asked.answer(CALL)
    assert await asked.answer(CALL) is ANSWER


async def test_line_that_is_given_up_is_cancelled_at_the_ingress() -> None:
    handle = FakeHandle(asyncio.Event())
    line = asyncio.create_task(desk(handle).answer(CALL))
    while not handle.calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)
    assert line.cancelled()
    assert handle.response.num_cancels == 1


@pytest.fixture
def _in_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "STANDBY_S", 0.01)
    monkeypatch.setattr(deployment.serve, "get_replica_context", lambda: SimpleNamespace(app_name="expresslane"))


async def deployed(settings: Settings) -> Batches:
    """As Serve makes it: the constructor is awaited."""
    batches = Batches.__new__(Batches)
    await batches.__init__(settings, "Ingress")  # type: ignore[misc]
    return batches


async def ended(batches: Batches) -> None:
    """As Serve ends it, and then the process's end does."""
    batches.__del__()
    await batches.close()


@pytest.mark.usefixtures("_in_serve")
async def test_owner_stands_by_and_takes_over_when_the_former_one_is_gone(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, lock_timeout_s=0.05)
    first = await deployed(settings)
    file_id = await first.begin_upload(NewFile("chat", "in"))
    await first.finish_upload("chat", file_id, None)
    second = await deployed(settings)
    await second.check_health()
    with pytest.raises(BatchesAway):
        await second.file("chat", file_id)
    await ended(first)
    async with asyncio.timeout(30):
        await second._database.is_ours.wait()
    assert (await second.file("chat", file_id)).id == file_id
    await second.check_health()
    await ended(second)
    with pytest.raises(RuntimeError, match="has ended"):
        await second.check_health()


@pytest.mark.usefixtures("_in_serve")
async def test_place_that_cannot_be_used_fails_the_deployment(tmp_path: Path) -> None:
    (tmp_path / "batches.sqlite3").mkdir()
    with pytest.raises(DatabaseError, match=r"batch\.path="):
        await deployed(settings_of(tmp_path))

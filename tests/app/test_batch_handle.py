"""Over a fake of Serve's handle; the real one is in tests/e2e/test_batches.py.

Mutations tried, each seen by a test here: no time limit; Ray's errors passed on; the owner's own word lost; arguments
left out."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from app import batch_handle
from app.batch_handle import ServeBatches
from slo.errors import BatchesAway, Rejected, StorageFull

METHODS = [name for name, _ in inspect.getmembers(ServeBatches, inspect.iscoroutinefunction)]


class FakeHandle:
    """The owner's handle: every method tells, raises or waits for the one outcome; `asked` has the calls."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, method: str) -> Any:
        class Method:
            @staticmethod
            async def remote(*args: Any) -> object:
                self.asked.append((method, args))
                if isinstance(self._outcome, asyncio.Event):
                    await self._outcome.wait()
                if isinstance(self._outcome, Exception):
                    raise self._outcome
                return self._outcome

        return Method


async def ask(method: str, outcome: object) -> tuple[object, FakeHandle, tuple[int, ...]]:
    handle = FakeHandle(outcome)
    asked = getattr(ServeBatches(handle), method)  # type: ignore[arg-type]
    arguments = tuple(range(len(inspect.signature(asked).parameters)))
    return await asked(*arguments), handle, arguments


@pytest.mark.parametrize("method", METHODS)
async def test_question_and_answer_are_passed_on(method: str) -> None:
    told, handle, arguments = await ask(method, "told")
    assert told == (None if method in ("append", "give_up_upload") else "told")
    assert handle.asked == [(method, arguments)]


def failed(cause: Exception) -> ray_errors.RayTaskError:
    return ray_errors.RayTaskError("file", "a traceback", cause, ip="127.0.0.1")


@pytest.mark.parametrize(
    "error",
    [
        ray_errors.ActorDiedError(),
        ray_errors.ActorUnavailableError("restarting", None),
        DeploymentUnavailableError(DeploymentID("Batches", "expresslane")),
        BackPressureError(8, 4),
        failed(ZeroDivisionError("inside")),
        failed(ZeroDivisionError("inside")).make_dual_exception_instance(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_owner_is_away_when_ray_fails(error: Exception) -> None:
    with pytest.raises(BatchesAway) as raised:
        await ask("file", error)
    assert "traceback" not in raised.value.message


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("cause", [Rejected("no such file"), StorageFull("no room")], ids=lambda e: type(e).__name__)
async def test_owners_own_word_is_passed_on(cause: Rejected | StorageFull, dual: bool) -> None:
    error = failed(cause)
    with pytest.raises(type(cause), match=cause.message):
        await ask("file", error.make_dual_exception_instance() if dual else error)


async def test_owner_is_away_when_it_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_handle, "ANSWER_LIMIT_S", 0)
    with pytest.raises(BatchesAway, match="did not answer in time"):
        await ask("file", asyncio.Event())

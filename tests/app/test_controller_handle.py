"""Over a fake of Serve's handle; the real one is in tests/e2e/test_operator.py.

Mutations tried, each seen by a test here: no time limit; Ray's errors passed on; the controller's own word lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from app.controller_handle import ServeOperator
from slo.errors import ControllerAway, Rejected, ServingError

ASKED = {"metrics": (), "status": ("tiny",), "alerts": (), "num_running_replicas": ("tiny",)}
"""What is asked, and with what."""


class FakeMethod:
    def __init__(self, outcome: object, arguments: tuple[str, ...]) -> None:
        self._outcome = outcome
        self._arguments = arguments

    async def remote(self, *arguments: str) -> object:
        assert arguments == self._arguments
        if isinstance(self._outcome, asyncio.Event):
            await self._outcome.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class FakeHandle:
    """The controller's handle: each method has the outcome that it is made with."""

    def __init__(self, **outcomes: object) -> None:
        self._outcomes = outcomes

    def __getattr__(self, method: str) -> FakeMethod:
        return FakeMethod(self._outcomes[method], ASKED[method])


def operator(answer_timeout_s: float = 30, **outcomes: object) -> ServeOperator:
    return ServeOperator(FakeHandle(**outcomes), answer_timeout_s)  # type: ignore[arg-type]


async def ask(asked: str, outcome: object, answer_timeout_s: float = 30) -> Any:
    return await getattr(operator(answer_timeout_s, **{asked: outcome}), asked)(*ASKED[asked])


@pytest.mark.parametrize("asked", ASKED)
async def test_answer_is_the_controllers(asked: str) -> None:
    assert await ask(asked, "told") == "told"


def failed(cause: Exception) -> ray_errors.RayTaskError:
    return ray_errors.RayTaskError("status", "a traceback", cause, ip="127.0.0.1")


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "error",
    [
        ray_errors.ActorDiedError(),
        ray_errors.ActorUnavailableError("restarting", None),
        DeploymentUnavailableError(DeploymentID("Controller", "expresslane")),
        BackPressureError(8, 4),
        failed(ZeroDivisionError("inside")),
        failed(ZeroDivisionError("inside")).make_dual_exception_instance(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_controller_is_away_when_ray_fails(asked: str, error: Exception) -> None:
    with pytest.raises(ControllerAway) as raised:
        await ask(asked, error)
    assert "traceback" not in raised.value.message


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("word", [ControllerAway("it has just started"), Rejected("no model of that name")])
async def test_controllers_own_word_is_passed_on(dual: bool, word: ServingError) -> None:
    error = failed(word)
    with pytest.raises(type(word), match=word.message):
        await ask("status", error.make_dual_exception_instance() if dual else error)


async def test_controller_is_away_when_it_does_not_answer_in_time() -> None:
    with pytest.raises(ControllerAway, match="did not answer in time"):
        await ask("status", asyncio.Event(), answer_timeout_s=0)

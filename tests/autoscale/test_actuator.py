"""Over a fake of Serve's REST API; the real one is in tests/e2e/test_autoscale.py.

Mutations tried, each seen by a test here: no retry; refusals tried again; the token left out; the address never asked
for again; draining counted as running; the flag's refusal told as any other."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from ray._private.authentication import http_token_authentication
from ray.dashboard import utils as dashboard_utils
from ray.dashboard.modules.serve import serve_head
from ray.serve._private.common import ReplicaState

from autoscale import actuator as source
from autoscale.actuator import ATTEMPTS, ServeActuator
from autoscale.scaling import ActuatorError, ScalerDisabled
from autoscale.summary import ServedReplicas

NO_FLAG = {"error": "... when 'external_scaler_enabled' is set to true in the application configuration."}
Answer = httpx.Response | Exception


def details(*states: str, target: int = 2) -> dict[str, Any]:
    replicas = [{"state": s, "replica_id": str(i)} for i, s in enumerate(states)]
    deployment = {"target_num_replicas": target, "replicas": replicas}
    return {"applications": {"expresslane": {"deployments": {"Replica": deployment}}}}


class FakeRest:
    """Answers in order; the last answer stays."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.waits_s: list[float] = []
        self.num_finds = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find_url(self) -> str:
        self.num_finds += 1
        return f"http://head-{self.num_finds}:8265"

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)


def actuator(rest: FakeRest) -> ServeActuator:
    return ServeActuator(
        httpx.AsyncClient(transport=httpx.MockTransport(rest)),
        "expresslane",
        "Replica",
        find_url=rest.find_url,
        auth_headers=lambda: {"authorization": "Bearer t"},
        sleep=rest.sleep,
    )


def ok(body: object = None) -> httpx.Response:
    return httpx.Response(200, json=body or {})


async def test_read_counts_replicas_by_state() -> None:
    states = ("RUNNING", "RUNNING", "STARTING", "RECOVERING", "STOPPING", "UPDATING", "PENDING_MIGRATION", "STOPPED")
    rest = FakeRest(ok(details(*states, target=5)))
    assert await actuator(rest).read() == ServedReplicas(target=5, running=4, starting=2, draining=1)
    assert rest.requests[0].url == "http://head-1:8265/api/serve/applications/"
    assert rest.requests[0].method == "GET"


def test_every_state_of_serve_is_counted_or_over() -> None:
    counted = source._RUNNING | source._STARTING | source._DRAINING
    assert {s.value for s in ReplicaState} - counted == {"STOPPED"}


@pytest.mark.parametrize("answer", [{}, {"applications": {}}, {"applications": {"expresslane": {"deployments": {}}}}])
async def test_read_fails_when_serve_does_not_know_the_deployment(answer: dict[str, Any]) -> None:
    with pytest.raises(ActuatorError, match="Serve's details have no"):
        await actuator(FakeRest(ok(answer))).read()


async def test_set_target_asks_serve_with_the_token() -> None:
    rest = FakeRest(ok())
    await actuator(rest).set_target(3)
    (request,) = rest.requests
    assert (request.method, request.url.path) == (
        "POST",
        "/api/v1/applications/expresslane/deployments/Replica/scale",
    )
    assert json.loads(request.content) == {"target_num_replicas": 3}
    assert request.headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("passing", [httpx.Response(503, text="busy"), httpx.ConnectError("refused")], ids=repr)
async def test_call_is_tried_again_with_growing_waits(passing: Answer) -> None:
    rest = FakeRest(passing, passing, ok())
    await actuator(rest).set_target(2)
    assert len(rest.requests) == 3
    assert rest.waits_s == sorted(rest.waits_s)
    assert rest.waits_s[1] > rest.waits_s[0] > 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(503, text="busy"), "Serve answered 503: busy"),
        (httpx.ConnectError("refused"), "the dashboard cannot be reached: ConnectError: refused"),
        (httpx.ReadTimeout("slow"), "the dashboard cannot be reached: ReadTimeout: slow"),
    ],
    ids=repr,
)
async def test_call_fails_once_every_attempt_has(answer: Answer, message: str) -> None:
    rest = FakeRest(answer)
    with pytest.raises(ActuatorError) as raised:
        await actuator(rest).set_target(2)
    assert str(raised.value) == message
    assert len(rest.requests) == ATTEMPTS


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(412, json=NO_FLAG), ScalerDisabled),
        (httpx.Response(412, json={"error": "Deployment is deleted"}), ActuatorError),
        (httpx.Response(404, json={"error": "Application or Deployment not found"}), ActuatorError),
        (httpx.Response(401, text="Unauthorized"), ActuatorError),
    ],
    ids=lambda value: value.text[:30] if isinstance(value, httpx.Response) else value.__name__,
)
async def test_refusal_is_told_at_once(answer: httpx.Response, kind: type[ActuatorError]) -> None:
    rest = FakeRest(answer)
    with pytest.raises(ActuatorError) as raised:
        await actuator(rest).set_target(2)
    assert type(raised.value) is kind
    assert len(rest.requests) == 1


async def test_refusal_without_the_flag_says_what_to_do() -> None:
    with pytest.raises(ScalerDisabled, match="external_scaler_enabled: true"):
        await actuator(FakeRest(httpx.Response(412, json=NO_FLAG))).set_target(2)


async def test_address_is_found_once_and_again_after_the_head_was_lost() -> None:
    rest = FakeRest(ok(details()), ok(details()), httpx.ConnectError("gone"), ok(details()))
    acting = actuator(rest)
    for _ in range(3):
        await acting.read()
    assert [r.url.host for r in rest.requests] == ["head-1", "head-1", "head-1", "head-2"]


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (http_token_authentication.get_auth_headers_if_auth_enabled, ["user_headers"]),
        (dashboard_utils.ray_address_to_api_server_url, ["address"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rays_private_points_are_as_the_actuator_calls_them(
    function: Callable[..., Any], parameters: list[str]
) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_serves_refusal_names_the_flag_as_the_actuator_expects() -> None:
    from ray.serve._private.controller import ServeController

    assert "external_scaler_enabled" in inspect.getsource(ServeController)
    assert '"/api/v1/applications/{application_name}/deployments/{deployment_name}/scale"' in inspect.getsource(
        serve_head
    )

"""Mutations tried, each seen by a test here: the page without its hashes; an answer that may be stored; the
controller's absence as 500; another content type; the routes there without an operator."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from typing import TypeVar

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.operator import STATUS_PAGE, page_headers
from slo.errors import ControllerAway, Rejected, RejectReason
from slo.status import AlertReport, AlertsReport, AlertState, ReplicaCountsReport, StatusReport
from tests.app.fake_dispatcher import FakeDispatcher
from tests.app.one_model import api_of_one

ALERT = AlertReport(
    model="org/name",
    name="tbt_breach",
    severity="critical",
    state=AlertState.FIRING,
    priority_class="P0",
    value=0.5,
    threshold=0.04,
    unit="s",
    message='a "message" with <b>markup</b>',
    since_ago_s=3.5,
)
STATUS = StatusReport(
    model="org/name",
    models=("org/name", "other"),
    mode="on",
    up_s=10,
    period_s=10,
    window_s=30,
    is_complete=True,
    counts=ReplicaCountsReport(target=1, running=None, starting=0, draining=0, min_replicas=1, max_replicas=4),
    replicas=(),
    classes=(),
    preemptions_per_minute=None,
    kv_hit_ratio=0.5,
    gpu_utilisation_ratio=None,
    mean_batch_size=None,
    alerts=(ALERT,),
    decisions=(),
)
Told = TypeVar("Told")
METRICS = "# HELP a_total Things.\n# TYPE a_total counter\na_total 3.0\n"
PATHS = ("/metrics", "/v1/status", "/v1/alerts")


class FakeOperator:
    """Tells what it is made with, or raises `away`."""

    def __init__(self, away: Exception | None = None) -> None:
        self.away = away

    async def metrics(self) -> str:
        return self._or_raise(METRICS)

    async def status(self, model: str | None) -> StatusReport:
        if model not in (None, *STATUS.models):
            raise Rejected("no model of that name", "model", RejectReason.UNKNOWN_MODEL)
        return self._or_raise(STATUS.model_copy(update={"model": model or STATUS.model}))

    async def alerts(self) -> AlertsReport:
        return self._or_raise(AlertsReport(alerts=(ALERT,)))

    def _or_raise(self, told: Told) -> Told:
        if self.away is not None:
            raise self.away
        return told


def api(operator: FakeOperator | None) -> FastAPI:
    return api_of_one(FakeDispatcher(), operator=operator)


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api(FakeOperator())) as opened:
        yield opened


async def test_metrics_are_the_controllers_text_in_prometheus_format(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    (family,) = text_string_to_metric_families(answer.text)
    assert [s.value for s in family.samples] == [3.0]


async def test_status_is_the_report_as_json(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/status")
    assert answer.headers["content-type"] == "application/json"
    assert StatusReport.model_validate_json(answer.content) == STATUS
    assert answer.json()["counts"]["running"] is None


async def test_status_is_of_the_model_that_the_query_names(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/status?model=other")).json()["model"] == "other"
    refused = await client.get("/v1/status?model=none")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"


async def test_alerts_are_the_report_as_json(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/alerts")
    assert AlertsReport.model_validate_json(answer.content).alerts == (ALERT,)
    assert answer.json()["alerts"][0]["state"] == "firing"


@pytest.mark.parametrize("path", [*PATHS, "/status"])
async def test_nothing_may_be_stored_on_the_way(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PATHS)
async def test_answer_is_503_in_openais_shape_while_the_controller_is_away(path: str) -> None:
    operator = FakeOperator(ControllerAway("the controller did not answer in time"))
    async with client_of(api(operator)) as client:
        answer = await client.get(path)
        assert answer.status_code == 503
        assert answer.json()["error"] == {
            "message": "the controller did not answer in time",
            "type": "service_unavailable",
            "param": None,
            "code": "controller_away",
        }
        assert answer.headers["retry-after"] == "1"
        operator.away = None
        assert (await client.get(path)).status_code == 200


async def test_page_is_there_while_the_controller_is_away() -> None:
    async with client_of(api(FakeOperator(ControllerAway("away")))) as client:
        assert (await client.get("/status")).status_code == 200


async def test_page_is_the_file_and_may_run_only_its_own_script_and_style(client: httpx.AsyncClient) -> None:
    answer = await client.get("/status")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text == STATUS_PAGE.read_text(encoding="utf-8")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}\b[^>]*>(.*?)</{element}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_page_without_script_may_run_none() -> None:
    policy = page_headers("<p>nothing</p>")["content-security-policy"]
    assert "script-src 'none'; style-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", [*PATHS, "/status"])
async def test_routes_are_not_there_without_an_operator(path: str) -> None:
    async with client_of(api(None)) as client:
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("path", [*PATHS, "/status"])
async def test_routes_are_for_reading_only(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"

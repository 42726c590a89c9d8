"""The OpenAPI document of the application.

Mutations that these tests see: a route without a description; a status that no error has, or one left out; a key that
the door asks for and the document does not; a mapped header left out; a reference to nothing; a required field that is
none; the names of models told to who has no key; the document made anew for each request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator

from app import openapi
from app.classify import SERVICE_TIERS
from app.errors import to_http
from app.openapi import OPENAPI_PATH, document_of
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from tests.app.every_error import ERRORS
from tests.app.fake_dispatcher import FakeDispatcher
from tests.app.one_model import api_of_one
from tests.app.test_operator import FakeOperator

GENERATION = ("/v1/chat/completions", "/v1/completions")
OPERATORS = ("/metrics", "/status", "/v1/status", "/v1/alerts")
KEYED = {"tenants": {"keys_file": "/never/read.yaml", "operator_key_sha256": "0" * 64}}
OF_FILES_ALONE = {409, 507}


def app_of(settings: Settings | None = None) -> FastAPI:
    names = ("a-secret-model",)
    return api_of_one(FakeDispatcher(), settings, names, operator=FakeOperator(), batches=MagicMock())


def document(values: dict[str, Any] | None = None) -> dict[str, Any]:
    return document_of(app_of(parse_settings(values or {})))


def operations(told: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for operation in methods.values():
            yield path, operation


async def test_document_is_served_and_is_valid_openapi_3_1() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app_of()), base_url="http://test") as client:
        answer = await client.get(OPENAPI_PATH)
    assert answer.status_code == 200
    told = answer.json()
    assert told["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(told).validate()


async def test_document_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(app: FastAPI) -> dict[str, Any]:
        made.append(app)
        return document_of(app)

    monkeypatch.setattr(openapi, "document_of", counted)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app_of()), base_url="http://test") as client:
        answers = [(await client.get(OPENAPI_PATH)).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(made) == 1


def test_document_has_every_route_of_the_application() -> None:
    app = app_of()
    routes = {(r.path_format, m.lower()) for r in app.routes if isinstance(r, APIRoute) for m in r.methods or ()}
    told = {(path, method) for path, methods in document_of(app)["paths"].items() for method in methods}
    assert told == routes
    assert len(routes) == len(app.routes) == 20


def test_document_leaves_operators_routes_out_when_they_are_not_there() -> None:
    told = document_of(api_of_one(FakeDispatcher()))
    assert not set(OPERATORS) & set(told["paths"])


def test_each_documented_status_can_occur_and_none_is_left_out() -> None:
    possible = {to_http(error).status for error in ERRORS}
    told = {int(status) for _, operation in operations(document()) for status in operation["responses"]}
    assert told == possible | {200}


@pytest.mark.parametrize("path", GENERATION)
def test_generation_may_end_in_every_way_that_an_error_has(path: str) -> None:
    told = document()["paths"][path]["post"]["responses"]
    assert {int(status) for status in told} == {to_http(error).status for error in ERRORS} - OF_FILES_ALONE | {200}
    assert set(told["200"]["content"]) == {"application/json", "text/event-stream"}


def test_every_route_may_be_asked_by_a_method_that_it_has_not() -> None:
    assert all("405" in operation["responses"] for _, operation in operations(document()))


def test_headers_that_an_error_brings_are_documented_with_its_status() -> None:
    brought = [to_http(error) for error in ERRORS]
    for path, operation in operations(document()):
        for http in brought:
            if (response := operation["responses"].get(str(http.status))) is not None:
                assert set(http.headers) <= set(response.get("headers", {})), (path, http.status)


def test_every_error_has_openais_shape_in_the_document() -> None:
    told = document()
    assert told["components"]["schemas"]["ErrorObject"]["required"] == ["message", "type", "param", "code"]
    for path, operation in operations(told):
        for status, response in operation["responses"].items():
            if status != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (path, status)


@pytest.mark.parametrize(("path", "needed"), [(GENERATION[0], "messages"), (GENERATION[1], "prompt")])
def test_request_bodies_name_the_main_fields_and_let_others_pass(path: str, needed: str) -> None:
    told = document()
    reference = told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = told["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert schema["required"] == [needed]
    assert schema["additionalProperties"] is True
    assert {"model", "max_tokens", "stream", "temperature", "n", "seed", "stop"} <= set(schema["properties"])
    tiers, _ = schema["properties"]["service_tier"]["anyOf"]
    assert tiers["enum"] == list(SERVICE_TIERS)


@pytest.mark.parametrize("path", GENERATION)
def test_headers_that_name_a_class_are_documented(path: str) -> None:
    mapped = {"classification": {"headers": [{"header": "X-Objective", "values": {"chat": "P0", "nightly": "P2"}}]}}
    parameters = {p["name"]: p for p in document(mapped)["paths"][path]["post"]["parameters"]}
    assert set(parameters) == {"X-Priority", "X-Objective", "X-Request-Id"}
    assert parameters["X-Priority"]["schema"]["enum"] == list(PriorityClass.allowed_names())
    assert parameters["X-Objective"]["schema"]["enum"] == ["chat", "nightly"]


def test_keys_are_needed_in_the_document_where_they_are_configured() -> None:
    def security(told: dict[str, Any], path: str) -> Any:
        (operation,) = told["paths"][path].values()
        return operation["security"]

    is_open, keyed = document(), document(KEYED)
    for path in (*GENERATION, "/v1/models", "/v1/models/{model_id}", "/v1/batches/{batch_id}/cancel"):
        assert security(is_open, path) == [{}, {"ApiKey": []}]
        assert security(keyed, path) == [{"ApiKey": []}]
    for path in OPERATORS:
        assert security(is_open, path) == [{}, {"OperatorKey": []}, {"OperatorPassword": []}]
        assert security(keyed, path) == [{"OperatorKey": []}, {"OperatorPassword": []}]
    for path in ("/healthz", "/readyz", OPENAPI_PATH):
        assert security(keyed, path) == []


def test_document_does_not_tell_the_models_to_who_has_no_key() -> None:
    assert "a-secret-model" not in str(document(KEYED))


def test_document_shows_validation_errors_of_fastapi_nowhere() -> None:
    assert all("422" not in operation["responses"] for _, operation in operations(document()))

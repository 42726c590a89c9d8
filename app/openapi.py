"""The OpenAPI document of the HTTP API, and the route that serves it.

FastAPI makes the paths of it from the routes. The handlers take requests as they come, since vLLM validates their
bodies, so what FastAPI would read off their signatures is told here, route by route. Describes; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from app.gate.access import LOWERED_FROM_HEADER
from app.openapi_schemas import ChatCompletion, ChatRequest, Completion, CompletionRequest, ErrorBody, Model, ModelList
from app.request_id import REQUEST_ID_HEADER
from slo.batch import BatchObject, BatchPage, FileDeleted, FileObject, FilePage, NewBatch
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.settings.classification import PRIORITY_HEADER
from slo.status import AlertsReport, StatusReport

Told = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Headers of an answer: what each says, and its schema."""
OPENAPI_PATH: Final = "/openapi.json"
API_VERSION: Final = "1"
CLASS_HEADER: Final = "x-priority-class"
_REF: Final = "#/components/schemas/{model}"
_SENT: Final = (ChatRequest, CompletionRequest, NewBatch)
_TOLD: Final = (
    ChatCompletion,
    Completion,
    Model,
    ModelList,
    FileObject,
    FilePage,
    FileDeleted,
    BatchObject,
    BatchPage,
    StatusReport,
    AlertsReport,
    ErrorBody,
)
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is at fault; `param` names the field or header.",
    401: "No key was sent, or it is not valid.",
    403: "The class is above those that the key may ask for.",
    404: "There is no such model, file or batch.",
    405: "Another method than the path has.",
    409: "A batch that has not ended needs it.",
    413: "The body is too large, or asks for more tokens than the key has in any minute.",
    429: "The key's minute is used up (`rate_limit_exceeded`), or the request was shed for load (`overloaded`).",
    500: "A fault of the server's own.",
    501: "The model, or the way it is served, does not support what was asked.",
    503: "Nothing can answer now.",
    504: "The request waited too long for its turn.",
    507: "There is no room to keep it. What was kept before is not lost.",
}
_GENERATION_ERRORS: Final = tuple(status for status in _ERRORS if status not in (409, 507))
_RETRY_AFTER: Final = {"retry-after": ("When to come again, seconds.", {"type": "integer", "minimum": 1})}
_ERROR_HEADERS: Final[Mapping[int, Told]] = {
    401: {"www-authenticate": ("How to send a key.", {"type": "string"})},
    405: {"allow": ("The methods that the path has.", {"type": "string"})},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
_EVENT: Final = {
    "type": "object",
    "description": "Each event of the stream.",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A JSON object; `[DONE]` at the end of a whole answer."}},
}
_CLASS_NAME: Final = {"type": "string", "enum": [c.name for c in PriorityClass]}


class Descriptions:
    """What the document says of each route, by its path; each is given to `FastAPI.add_api_route`."""

    def __init__(self, settings: Settings) -> None:
        self._class_headers = settings.classification.headers
        self._key = security("ApiKey", is_needed=settings.tenants.keys_file is not None)
        needs_operator_key = settings.tenants.operator_key_sha256 is not None
        self._operator_key = security("OperatorKey", "OperatorPassword", is_needed=needs_operator_key)

    def of(self, path: str) -> dict[str, Any]:
        """The description of the route at `path`. Raises KeyError: it has none."""
        describe = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/v1/models": self._models,
            "/v1/models/{model_id:path}": self._model,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/v1/status": self._status,
            "/v1/alerts": self._alerts,
            "/status": self._page,
            OPENAPI_PATH: self._document,
        }[path]
        return describe()

    def _chat(self) -> dict[str, Any]:
        return self._generation("chat_completion", "Continue a conversation", ChatRequest, ChatCompletion)

    def _completions(self) -> dict[str, Any]:
        return self._generation("completion", "Continue a text", CompletionRequest, Completion)

    def _generation(self, name: str, summary: str, asked: type[BaseModel], told: type[BaseModel]) -> dict[str, Any]:
        content = {
            "application/json": {"schema": ref(told)},
            "text/event-stream": {"schema": _EVENT},
        }
        headers = {REQUEST_ID_HEADER: ("The request's id, in the logs too.", {"type": "string"})}
        has_class = headers | {CLASS_HEADER: ("The class that the request has.", _CLASS_NAME)}
        responses = errors_of(_GENERATION_ERRORS, {s: headers for s in _GENERATION_ERRORS if s != 405})
        lowered = {LOWERED_FROM_HEADER: {"description": "The class it asked for, when lowered.", "schema": _CLASS_NAME}}
        responses[200] = {
            "description": "The answer; a stream when `stream` is true.",
            "content": content,
            "headers": _headers(has_class) | lowered,
        }
        extra = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": ref(asked)}}},
            "parameters": [*self._class_parameters(), _REQUEST_ID_PARAMETER],
        }
        return route(name, "generation", summary, responses, self._key, extra)

    def _class_parameters(self) -> Iterable[dict[str, Any]]:
        yield _header_parameter(
            PRIORITY_HEADER.title(), "The request's class, in any case.", list(PriorityClass.allowed_names())
        )
        for mapping in self._class_headers:
            yield _header_parameter(mapping.header, "Another name of a class, in any case.", list(mapping.values))

    def _models(self) -> dict[str, Any]:
        responses = errors_of((401, 405, 500, 503)) | {200: json_of(ModelList)}
        return route("list_models", "models", "What is served", responses, self._key)

    def _model(self) -> dict[str, Any]:
        responses = errors_of((401, 404, 405, 500, 503)) | {200: json_of(Model)}
        name = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
        return route("get_model", "models", "One model", responses, self._key, {"parameters": [name]})

    def _healthz(self) -> dict[str, Any]:
        return route("healthz", "probes", "This process answers", errors_of((405,)), as_=PlainTextResponse)

    def _readyz(self) -> dict[str, Any]:
        return route("readyz", "probes", "A replica answers", errors_of((405, 500, 503)), as_=PlainTextResponse)

    def _metrics(self) -> dict[str, Any]:
        summary = "The fleet, in Prometheus' text format"
        return self._for_operators("metrics", summary, (500, 503), as_=PlainTextResponse)

    def _status(self) -> dict[str, Any]:
        name = {"name": "model", "in": "query", "description": "By default the first.", "schema": {"type": "string"}}
        extra = {"parameters": [name]}
        return self._for_operators("status", "The fleet of a model", (404, 500, 503), StatusReport, extra=extra)

    def _alerts(self) -> dict[str, Any]:
        return self._for_operators("alerts", "All alerts", (500, 503), AlertsReport)

    def _page(self) -> dict[str, Any]:
        return self._for_operators("status_page", "The fleet, as a page", (), as_=HTMLResponse)

    def _for_operators(
        self,
        name: str,
        summary: str,
        errors: tuple[int, ...],
        told: type[BaseModel] | None = None,
        as_: type[Response] = JSONResponse,
        extra: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        responses = errors_of((401, 405, *errors))
        if told is not None:
            responses[200] = json_of(told)
        return route(name, "operators", summary, responses, self._operator_key, extra, as_)

    def _document(self) -> dict[str, Any]:
        responses = errors_of((405,)) | {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
        return route("openapi", "probes", "This document", responses)


def add_openapi_route(app: FastAPI, descriptions: Descriptions) -> None:
    """Adds the route that serves the document of all routes of `app`; made at the first request, then kept."""
    made: list[dict[str, Any]] = []

    async def openapi() -> Response:
        if not made:
            made.append(document_of(app))
        return JSONResponse(made[0])

    app.add_api_route(OPENAPI_PATH, openapi, methods=["GET"], response_model=None, **descriptions.of(OPENAPI_PATH))


def document_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the routes that `app` has now."""
    document = get_openapi(
        title=app.title,
        version=API_VERSION,
        description="OpenAI's HTTP API, in which a request has a class: P0 overtakes P1, and P1 overtakes P2.",
        routes=app.routes,
    )
    _, schemas = models_json_schema(
        [(model, "validation") for model in _SENT] + [(model, "serialization") for model in _TOLD], ref_template=_REF
    )
    document["components"] = {"schemas": schemas["$defs"], "securitySchemes": _SECURITY_SCHEMES}
    return document


_REQUEST_ID_PARAMETER: Final[dict[str, Any]] = {
    "name": REQUEST_ID_HEADER.title(),
    "in": "header",
    "description": "An id of your own: 1 to 128 letters, digits and `._:-`. Replaced when it is anything else.",
    "schema": {"type": "string"},
}
_SECURITY_SCHEMES: Final[dict[str, Any]] = {
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "Needed where keys are configured."},
    "OperatorKey": {"type": "http", "scheme": "bearer", "description": "Needed where it is configured."},
    "OperatorPassword": {"type": "http", "scheme": "basic", "description": "The operators' key, with any user name."},
}


def security(*schemes: str, is_needed: bool) -> list[dict[str, list[str]]]:
    """Any of `schemes`, or none where no key is configured."""
    any_of: list[dict[str, list[str]]] = [{scheme: []} for scheme in schemes]
    return any_of if is_needed else [{}, *any_of]


def route(
    name: str,
    tag: str,
    summary: str,
    responses: dict[int, dict[str, Any]],
    security: list[dict[str, list[str]]] | None = None,
    extra: dict[str, Any] | None = None,
    as_: type[Response] = JSONResponse,
) -> dict[str, Any]:
    """What `FastAPI.add_api_route` is told of a route."""
    return {
        "operation_id": name,
        "tags": [tag],
        "summary": summary,
        "responses": responses,
        "response_class": as_,
        "openapi_extra": {**(extra or {}), "security": security or []},
    }


def errors_of(statuses: Iterable[int], further: Mapping[int, Told] | None = None) -> dict[int, dict[str, Any]]:
    """What a route may answer when it does not answer well; `further`: headers that it has besides."""
    return {
        status: {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": ref(ErrorBody)}},
            "headers": _headers({**_ERROR_HEADERS.get(status, {}), **(further or {}).get(status, {})}),
        }
        for status in statuses
    }


def _headers(told: Told) -> dict[str, Any]:
    """Headers that are always there: a description and a schema each."""
    return {name: {"description": text, "required": True, "schema": schema} for name, (text, schema) in told.items()}


def _header_parameter(name: str, description: str, values: list[str]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string", "enum": values}}


def json_of(model: type[BaseModel]) -> dict[str, Any]:
    """An answer of this form."""
    return {"content": {"application/json": {"schema": ref(model)}}}


def ref(model: type[BaseModel]) -> dict[str, str]:
    """Where the document has the form of `model`."""
    return {"$ref": _REF.format(model=model.__name__)}

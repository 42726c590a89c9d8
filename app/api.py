"""The HTTP API: OpenAI's endpoints, and two for probes. One request reads from top to bottom in `_generate`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Lifespan

from app.body import for_engine, parse_json_object, read_body
from app.classify import classify
from app.dispatch import Dispatcher
from app.errors import quoted
from app.gate.access import LOWERED_FROM_HEADER, Access
from app.gate.entry import Entry
from app.gate.operator_key import OperatorKeyCheck
from app.metrics import IngressMetrics
from app.operator import Operator, add_operator_routes
from app.record import RequestRecord
from app.request_id import REQUEST_ID_HEADER, choose_request_id
from app.stream import answer as answer_with
from app.stream import error_response
from slo.errors import Rejected, RejectReason, ServingError
from slo.messages import Endpoint, GenerateCall
from slo.settings import Settings

CLASS_HEADER = "x-priority-class"
logger = logging.getLogger("expresslane.ingress")


class Api:
    """The routes' handlers, over a dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: Settings,
        model_names: Sequence[str],
        metrics: IngressMetrics,
        entry: Entry,
        server_echoes_request_id: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._model_names = tuple(model_names)
        self._metrics = metrics
        self._entry = entry
        self._server_echoes_request_id = server_echoes_request_id

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(request, Endpoint.CHAT)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._generate(request, Endpoint.COMPLETION)

    async def _generate(self, request: Request, endpoint: Endpoint) -> Response:
        sent_id = request.headers.get(REQUEST_ID_HEADER)
        request_id = choose_request_id(sent_id)
        headers = {} if self._server_echoes_request_id and request_id == sent_id else {REQUEST_ID_HEADER: request_id}
        request.state.request_id, request.state.answer_headers = request_id, headers
        record = RequestRecord(request_id, request.url.path, self._metrics)
        try:
            tenant = self._entry.tenant_of(request.headers)
            raw = await read_body(request, self._settings.ingress.max_body_bytes)
            body = parse_json_object(raw)
            asked = classify(request.headers.items(), body, endpoint, self._settings.classification)
            granted = self._entry.grant(asked, tenant)
            decision = granted.classification
            record.classified(decision)
            headers[CLASS_HEADER] = decision.priority.name
            if granted.lowered_from is not None:
                headers[LOWERED_FROM_HEADER] = granted.lowered_from.name
            self._check_model(body.get("model"))
            call = GenerateCall(endpoint, for_engine(body), decision.priority, request_id)
            ask = await self._entry.ask_for(call, body, len(raw), tenant)
            return await answer_with(self._entry.admitted(ask, self._dispatcher.generate(call)), record, headers)
        except ServingError as error:
            record.close(error)
            return error_response(error, headers)
        except ClientDisconnect:
            record.close(asyncio.CancelledError())
            return Response(status_code=499)
        except BaseException as error:
            record.close(error)
            raise

    def _check_model(self, name: object) -> None:
        if name is None:
            return
        if not isinstance(name, str):
            raise Rejected("model: must be a string", param="model")
        if name not in self._model_names:
            raise _unknown_model(name, self._model_names)

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models."""
        self._entry.tenant_of(request.headers)
        return JSONResponse({"object": "list", "data": await self._dispatcher.models()})

    async def get_model(self, request: Request, model_id: str) -> Response:
        """GET /v1/models/{id}."""
        self._entry.tenant_of(request.headers)
        models = await self._dispatcher.models()
        for model in models:
            if model["id"] == model_id:
                return JSONResponse(model)
        raise _unknown_model(model_id, [m["id"] for m in models])

    async def readyz(self) -> Response:
        """GET /readyz: 200 when a replica answers, 503 otherwise."""
        await self._dispatcher.models()
        return PlainTextResponse("ready\n")

    async def healthz(self) -> Response:
        """GET /healthz: this process answers."""
        return PlainTextResponse("ok\n")


def _unknown_model(name: str, served: Sequence[str]) -> Rejected:
    message = f"the model {quoted(name)} does not exist; served: {', '.join(served)}"
    return Rejected(message, param="model", reason=RejectReason.UNKNOWN_MODEL)


def create_api(
    dispatcher: Dispatcher,
    settings: Settings,
    model_names: Sequence[str],
    *,
    metrics: IngressMetrics | None = None,
    operator: Operator | None = None,
    entry: Entry | None = None,
    lifespan: Lifespan[FastAPI] | None = None,
    server_echoes_request_id: bool = False,
) -> FastAPI:
    """The ASGI application.

    Args:
        model_names: the names that a request's `model` may have.
        metrics: what the requests are counted in, to be read elsewhere in this process; None: in its own.
        operator: what operators are told by; None: their routes are not there.
        entry: the gate, followed elsewhere in this process; None: one of its own, open to all.
        lifespan: what runs while the application does.
        server_echoes_request_id: the server adds the request's `x-request-id` to each answer by itself, as Ray Serve
            does; a second one would read as a list.
    """
    metrics = metrics or IngressMetrics(settings.scheduler.targets)
    entry = entry or Entry(settings, Access(None))
    api = Api(dispatcher, settings, model_names, metrics, entry, server_echoes_request_id)
    app = FastAPI(title="Expresslane", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    routes: list[tuple[str, str, Any]] = [
        ("POST", "/v1/chat/completions", api.chat_completions),
        ("POST", "/v1/completions", api.completions),
        ("GET", "/v1/models", api.list_models),
        ("GET", "/v1/models/{model_id:path}", api.get_model),
        ("GET", "/healthz", api.healthz),
        ("GET", "/readyz", api.readyz),
    ]
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method], response_model=None)
    if operator is not None:
        add_operator_routes(app, operator)
    if (key_sha256 := settings.tenants.operator_key_sha256) is not None:
        app.add_middleware(OperatorKeyCheck, key_sha256=key_sha256)
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unexpected)
    return app


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(error, {})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        rejected = Rejected(f"{request.method} is not allowed on {path}", reason=RejectReason.WRONG_METHOD)
    elif error.status_code == 404:
        rejected = Rejected(f"unknown URL: {request.method} {path}", reason=RejectReason.UNKNOWN_ROUTE)
    else:
        rejected = Rejected(str(error.detail))
    return error_response(rejected, dict(error.headers or {}))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    request_id = getattr(request.state, "request_id", None)
    logger.error("request_id=%s route=%r reason=unexpected", request_id, request.url.path, exc_info=error)
    headers = getattr(request.state, "answer_headers", {})
    return error_response(ServingError("an unexpected error; the log has it under this request's id"), headers)

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
from starlette.routing import Match, Route
from starlette.types import Lifespan

from app.batch_api import Batches, add_batch_routes
from app.body import parse_json_object, read_body
from app.classify import classify
from app.gate.access import LOWERED_FROM_HEADER
from app.gate.operator_key import OperatorKeyCheck
from app.gate.tenant import Tenant
from app.generation import Asked, begin
from app.openapi import CLASS_HEADER, Descriptions, add_openapi_route
from app.operator import Operator, add_operator_routes
from app.record import RequestRecord
from app.request_id import REQUEST_ID_HEADER, choose_request_id
from app.served import ServedModel, ServedModels, unknown_model
from app.stream import answer as answer_with
from app.stream import error_response
from slo.errors import Rejected, RejectReason, ServingError
from slo.messages import Endpoint
from slo.settings import Settings

logger = logging.getLogger("expresslane.ingress")


class Api:
    """The routes' handlers, over the models that are served."""

    def __init__(self, models: ServedModels, settings: Settings, server_echoes_request_id: bool) -> None:
        self._models = models
        self._settings = settings
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
        record = RequestRecord(request_id, request.scope["route"].path, self._models.first.metrics)
        try:
            tenant = self._tenant_of(request)
            record.asked_by(tenant.name)
            raw = await read_body(request, self._settings.ingress.max_body_bytes)
            body = parse_json_object(raw)
            wanted = classify(request.headers.items(), body, endpoint, self._settings.classification)
            granted = self._models.first.entry.grant(wanted, tenant)
            decision = granted.classification
            model, unknown = await self._models.find_or_first(body.get("model"))
            record.classified(decision, model.metrics)
            headers[CLASS_HEADER] = decision.priority.name
            if granted.lowered_from is not None:
                headers[LOWERED_FROM_HEADER] = granted.lowered_from.name
            if unknown is not None:
                raise unknown
            asked = Asked(request_id, endpoint, body, len(raw), decision.priority, tenant)
            return await answer_with(await begin(model, asked), record, headers)
        except ServingError as error:
            record.close(error)
            return error_response(error, headers)
        except ClientDisconnect:
            record.close(asyncio.CancelledError())
            return Response(status_code=499)
        except BaseException as error:
            record.close(error)
            raise

    def _tenant_of(self, request: Request) -> Tenant:
        return self._models.first.entry.tenant_of(request.headers)

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models."""
        self._tenant_of(request)
        return JSONResponse({"object": "list", "data": await self._models.list_models()})

    async def get_model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        self._tenant_of(request)
        model_id: str = request.path_params["model_id"]
        models = await self._models.list_models()
        for model in models:
            if model["id"] == model_id:
                return JSONResponse(model)
        raise unknown_model(model_id, [m["id"] for m in models])

    async def readyz(self) -> Response:
        """GET /readyz: 200 when a replica answers, 503 otherwise."""
        await self._models.list_models()
        return PlainTextResponse("ready\n")

    async def healthz(self) -> Response:
        """GET /healthz: this process answers."""
        return PlainTextResponse("ok\n")


def create_api(
    models: Sequence[ServedModel],
    settings: Settings,
    *,
    operator: Operator | None = None,
    batches: Batches | None = None,
    lifespan: Lifespan[FastAPI] | None = None,
    server_echoes_request_id: bool = False,
) -> FastAPI:
    """The ASGI application.

    Args:
        models: at least one; the first answers who names none.
        settings: what they share.
        operator: what operators are told by; None: their routes are not there.
        batches: the owner of files and batches; None: their routes are not there.
        lifespan: what runs while the application does.
        server_echoes_request_id: the server adds the request's `x-request-id` to each answer by itself, as Ray Serve
            does; a second one would read as a list.
    """
    served = ServedModels(models)
    api = Api(served, settings, server_echoes_request_id)
    app = FastAPI(
        title="Expresslane",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # served by a route of ours, with what FastAPI cannot know
        redirect_slashes=False,  # a redirect would go wherever the request's `Host` says
        lifespan=lifespan,
    )
    descriptions = Descriptions(settings)
    routes: list[tuple[str, str, Any]] = [
        ("POST", "/v1/chat/completions", api.chat_completions),
        ("POST", "/v1/completions", api.completions),
        ("GET", "/v1/models", api.list_models),
        ("GET", "/v1/models/{model_id:path}", api.get_model),
        ("GET", "/healthz", api.healthz),
        ("GET", "/readyz", api.readyz),
    ]
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method], response_model=None, **descriptions.of(path))
    if operator is not None:
        add_operator_routes(app, operator, descriptions)
    if batches is not None:
        add_batch_routes(app, batches, served.first.entry, settings)
    add_openapi_route(app, descriptions)
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
    path, headers = request.scope["path"], dict(error.headers or {})
    if error.status_code == 405:
        rejected = Rejected(f"{request.method} is not allowed on {path}", reason=RejectReason.WRONG_METHOD)
        headers["Allow"] = ", ".join(_methods_of(request))
    elif error.status_code == 404:
        rejected = Rejected(f"unknown URL: {request.method} {path}", reason=RejectReason.UNKNOWN_ROUTE)
    else:
        rejected = Rejected(str(error.detail))
    return error_response(rejected, headers)


def _methods_of(request: Request) -> list[str]:
    """What the request's path has; Starlette tells those of the first route of several."""
    routes = [r for r in request.app.routes if isinstance(r, Route) and r.matches(request.scope)[0] is Match.PARTIAL]
    return sorted({method for route in routes for method in route.methods or ()})


async def _on_unexpected(request: Request, error: Exception) -> Response:
    request_id = getattr(request.state, "request_id", None)
    logger.error("request_id=%s route=%r reason=unexpected", request_id, request.scope["path"], exc_info=error)
    headers = getattr(request.state, "answer_headers", {})
    return error_response(ServingError("an unexpected error; the log has it under this request's id"), headers)

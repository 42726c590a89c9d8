"""The operators' side of the HTTP API: metrics, status and alerts, as the controller tells them.

Any ingress process gives the same answer, as none has one of its own: it asks the controller each time, and keeps
nothing. While the controller is away the answer is 503; requests are served all the same.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.openapi import Descriptions
from slo.status import AlertsReport, Report, StatusReport

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format, in the version that every scraper understands."""
STATUS_PAGE = Path(__file__).with_name("status.html")
NO_STORE = {"cache-control": "no-store"}


class Operator(Protocol):
    """What operators ask of the controller. Called in the ingress process, on its event loop."""

    async def metrics(self) -> str:
        """The fleet in Prometheus' text format. Raises ControllerAway."""
        ...

    async def status(self, model: str | None) -> StatusReport:
        """The fleet of `model`, by default the first. Raises ControllerAway; Rejected: there is no such model."""
        ...

    async def alerts(self) -> AlertsReport:
        """All alerts. Raises ControllerAway."""
        ...


class OperatorApi:
    """The routes' handlers, over an operator."""

    def __init__(self, operator: Operator, page: str) -> None:
        self._operator = operator
        self._page = page
        self._page_headers = NO_STORE | page_headers(page)

    async def metrics(self) -> Response:
        """GET /metrics."""
        text = await self._operator.metrics()
        return Response(text, headers={"content-type": METRICS_CONTENT_TYPE, **NO_STORE})

    async def status(self, request: Request) -> Response:
        """GET /v1/status, of one model where the query names one."""
        return _json(await self._operator.status(request.query_params.get("model")))

    async def alerts(self) -> Response:
        """GET /v1/alerts."""
        return _json(await self._operator.alerts())

    async def page(self) -> Response:
        """GET /status: the page, which asks for /v1/status itself."""
        return HTMLResponse(self._page, headers=self._page_headers)


def add_operator_routes(app: FastAPI, operator: Operator, descriptions: Descriptions) -> None:
    """Adds the routes to `app`; reads the page once."""
    api = OperatorApi(operator, STATUS_PAGE.read_text(encoding="utf-8"))
    routes: list[tuple[str, Callable[..., Any]]] = [
        ("/metrics", api.metrics),
        ("/v1/status", api.status),
        ("/v1/alerts", api.alerts),
        ("/status", api.page),
    ]
    for path, handler in routes:
        app.add_api_route(path, handler, methods=["GET"], response_model=None, **descriptions.of(path))


def page_headers(page: str) -> dict[str, str]:
    """What a browser may do with the page: run its own script, use its own style, and ask where it came from."""
    policy = [
        "default-src 'none'",
        f"script-src {_hashes(page, 'script')}",
        f"style-src {_hashes(page, 'style')}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return {
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def _hashes(page: str, element: str) -> str:
    """The sources that allow the inline `element`s of the page; `'none'` when it has none."""
    texts = re.findall(rf"<{element}\b[^>]*>(.*?)</{element}>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def _json(report: Report) -> Response:
    return Response(report.model_dump_json(), media_type="application/json", headers=NO_STORE)

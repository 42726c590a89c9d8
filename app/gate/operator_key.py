"""A key of their own for operators' routes, in front of the application.

It is sent as a bearer token, or as the password of basic authentication: that is what a browser can do, which opens the
status page.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.gate.access import invalid_key
from app.gate.keys import basic_password, bearer_key, matches
from app.stream import error_response

OPERATOR_PATHS: Final = frozenset({"/metrics", "/status", "/v1/status", "/v1/alerts"})
CHALLENGE: Final = 'Basic realm="operators"'
"""The scheme for which browsers ask their user."""


class OperatorKeyCheck:
    """ASGI middleware: answers 401 on `paths` unless the operators' key is sent.

    Which path a request has is decided as the application's router decides it, below a mount point too: comparing text
    would let through what the router takes for the same (`/metrics%0A`).
    """

    def __init__(self, app: ASGIApp, key_sha256: str, paths: Collection[str] = OPERATOR_PATHS) -> None:
        self._app = app
        self._key_sha256 = key_sha256
        self._guarded = [Route(path + end, _never_called) for path in paths for end in ("", "/")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if self._is_guarded(scope) and not self._has_key(scope):
            response = error_response(invalid_key("the operators' key is needed here"), {})
            response.headers["www-authenticate"] = CHALLENGE
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_guarded(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._guarded)

    def _has_key(self, scope: Scope) -> bool:
        authorization = Headers(scope=scope).get("authorization")
        key = bearer_key(authorization) or basic_password(authorization)
        return key is not None and matches(key, self._key_sha256)


async def _never_called(_: Request) -> Response:
    raise AssertionError("a route that is only compared with")

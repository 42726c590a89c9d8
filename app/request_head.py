"""A request's headers before Ray Serve reads them.

Serve's server stands around the application and reads some headers itself: it answers 500 when one of those is no
UTF-8, sends any `x-request-id` back as it came (a long one then outgrows HAProxy's buffer, which is a 500 again), and
takes orders that are no client's to give. So `RequestHead` stands around Serve's server, where Serve lets one stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.request_id import REQUEST_ID_HEADER, choose_request_id

SERVE_ENVIRONMENT: Final[Mapping[str, str]] = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}.middlewares"}
"""What the ingress processes' environment must hold, for Serve to find `middlewares`."""
ORDERS_TO_SERVE: Final = frozenset(
    {
        b"x-request-timeout-seconds",  # ends the request early, with an answer in no shape of ours
        b"x-request-disconnect-disabled",  # the engine would work on for a client that has left
        b"serve-multiplexed-model-id",  # we multiplex none
    }
)
"""Headers by which Serve lets a client decide what it does with the request; dropped."""
_REQUEST_ID: Final = REQUEST_ID_HEADER.encode()


def middlewares() -> list[Middleware]:
    """What Serve puts around its server. Called by it once, in the ingress process, before the first request."""
    return [Middleware(RequestHead)]


class RequestHead:
    """ASGI middleware: passes each request on with the headers of `clean_headers`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "headers": clean_headers(scope["headers"])}
        await self._app(scope, receive, send)


def clean_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """`headers` with exactly one request id, a sane one; without orders to Serve; every value in UTF-8.

    A value that is no UTF-8 is taken for Latin-1, as HTTP once had it, so that who reads it finds it as strange as it
    was. Two request ids that differ are none.

    Args:
        headers: names in lower case, as ASGI has them.
    """
    ids = {value for name, value in headers if name == _REQUEST_ID}
    sent = ids.pop().decode("latin-1") if len(ids) == 1 else None
    kept = [(name, _as_utf8(value)) for name, value in headers if not _is_dropped(name)]
    return [*kept, (_REQUEST_ID, choose_request_id(sent).encode())]


def _is_dropped(name: bytes) -> bool:
    return name == _REQUEST_ID or name.replace(b"_", b"-") in ORDERS_TO_SERVE


def _as_utf8(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value

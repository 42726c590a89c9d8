"""What Ray Serve's server gets of a request's headers.

Mutations that these tests see: a value that is no UTF-8 passed on; an order to Serve passed on; a request id passed on
as it came, or twice, or none made; the hook's name wrong; another scope touched.
"""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.http_util import RequestIdMiddleware
from ray.serve._private.utils import call_function_from_import_path
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.request_head import SERVE_ENVIRONMENT, RequestHead, clean_headers

ID = b"x-request-id"
NAMES = st.sampled_from([ID, b"x-priority", b"x-session-id", b"serve_multiplexed_model_id", b"authorization"])


def ids_in(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for name, value in clean_headers(headers) if name == ID]


@given(st.lists(st.tuples(NAMES, st.binary(max_size=300))))
def test_clean_headers_gives_utf8_and_one_sane_request_id_whatever_is_sent(headers: list[tuple[bytes, bytes]]) -> None:
    cleaned = clean_headers(headers)
    assert all(value.decode() or not value for _, value in cleaned)
    (request_id,) = [value.decode() for name, value in cleaned if name == ID]
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", request_id)


@pytest.mark.parametrize("sent", [[], [b"not sane"], [b"\xff"], [b"x" * 129], [b""], [b"a", b"b"]])
def test_clean_headers_makes_a_request_id_when_none_is_sent_that_is_sane(sent: list[bytes]) -> None:
    made, other = (ids_in([(ID, value) for value in sent]) for _ in range(2))
    assert re.fullmatch(rb"[0-9a-f]{32}", made[0])
    assert made != other


@pytest.mark.parametrize("sent", [[b"id-1"], [b"id-1", b"id-1"]])
def test_clean_headers_keeps_the_clients_request_id_when_it_is_sane(sent: list[bytes]) -> None:
    assert ids_in([(ID, value) for value in sent]) == [b"id-1"]


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
    ],
)
def test_clean_headers_drops_orders_to_serve(name: bytes) -> None:
    assert [n for n, _ in clean_headers([(name, b"1"), (b"accept", b"*/*")])] == [b"accept", ID]


def test_clean_headers_keeps_what_is_utf8_and_takes_the_rest_for_latin_1() -> None:
    sent = [(b"x-a", b"plain"), (b"x-a", "\u00e9".encode()), (b"x-b", b"\xe9")]
    assert clean_headers(sent)[:3] == [(b"x-a", b"plain"), (b"x-a", "\u00e9".encode()), (b"x-b", "\u00e9".encode())]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the headers as Serve does: as UTF-8."""
    told = {name.decode(): value.decode() for name, value in Request(scope).headers.raw}
    await JSONResponse(told)(scope, receive, send)


async def test_request_head_stands_where_serve_asks_for_it() -> None:
    """Serve's own steps: the hook called by its import path, its result put around Serve's id middleware."""
    (path,) = SERVE_ENVIRONMENT.values()
    (middleware,) = call_function_from_import_path(path)
    app = middleware.cls(RequestIdMiddleware(echo), *middleware.args, **middleware.kwargs)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.get("/", headers=[(ID, b"\xff" * 9000), (b"x-session-id", b"\xff")])
    assert answer.status_code == 200
    (echoed,) = answer.headers.get_list("x-request-id")
    assert answer.json()["x-request-id"] == echoed
    assert re.fullmatch(r"[0-9a-f]{32}", echoed)


async def test_request_head_lets_other_scopes_pass() -> None:
    seen = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope)

    async def never() -> None:
        raise AssertionError

    scope = {"type": "lifespan"}
    await RequestHead(app)(scope, never, never)  # type: ignore[arg-type]
    assert seen == [scope]

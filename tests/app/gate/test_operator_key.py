import base64

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from app.gate.keys import hash_key
from app.gate.operator_key import OPERATOR_PATHS, OperatorKeyCheck


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


async def answer(_: Request) -> PlainTextResponse:
    return PlainTextResponse("inside")


async def get(path: str, authorization: str | None = None) -> httpx.Response:
    app = Starlette(routes=[Route("/{path:path}", answer)])
    transport = httpx.ASGITransport(OperatorKeyCheck(app, hash_key("operators")))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(
            path, headers={} if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
        )


@pytest.mark.parametrize("path", [*sorted(OPERATOR_PATHS), "/metrics/", "/%6detrics", "/metrics?x=1"])
@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer wrong", basic("wrong"), "Basic operators", "Basic \u00fc", "Basic eA==", "operators"],
)
async def test_operators_routes_are_refused_without_their_key(path: str, authorization: str | None) -> None:
    response = await get(path, authorization)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Basic realm="operators"'
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", sorted(OPERATOR_PATHS))
@pytest.mark.parametrize("authorization", ["Bearer operators", basic("operators")])
async def test_operators_routes_answer_with_their_key(path: str, authorization: str) -> None:
    assert (await get(path, authorization)).text == "inside"


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/readyz", "/v1/chat/completions"])
async def test_other_routes_need_no_operators_key(path: str) -> None:
    assert (await get(path)).text == "inside"


@pytest.mark.parametrize(("root_path", "path"), [("", "/metrics\n"), ("/llm", "/llm/metrics"), ("", "/status/")])
async def test_operators_routes_are_refused_however_the_router_comes_to_them(root_path: str, path: str) -> None:
    """A route is the router's to name: it takes one newline for nothing, and looks below the mount point."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("no body is read")

    scope = {"type": "http", "method": "GET", "path": path, "root_path": root_path, "headers": []}
    routes = [Route(path, answer) for path in OPERATOR_PATHS]
    await OperatorKeyCheck(Starlette(routes=routes), hash_key("operators"))(scope, receive, send)
    assert sent[0]["status"] == 401

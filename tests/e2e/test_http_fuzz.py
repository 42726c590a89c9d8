"""Whatever is sent over HTTP, the deployed application gives no 500, does not hang, and serves the next request.

Over sockets of the test's own where a client would not send it: headers of any bytes, lengths that do not hold, what is
no HTTP at all. Over a client for bodies. The answer may be HAProxy's (400 for what is no HTTP) or the application's.

Mutations that these tests see: the ingress without `app.request_head`; a `Host` or a path read in a way that can fail;
a body that reaches the engine as it is.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks

from app.gate.keys import hash_key, new_key
from tests.e2e.conftest import LIMIT_S, MAX_BODY_BYTES, MODEL, Application

pytestmark = pytest.mark.e2e
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
SMALL = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 1}).encode()
KEY = new_key()
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@pytest.fixture(autouse=True)
def _serves_the_next_request(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post(CHAT, json=BODY).status_code == 200


def statuses_of(application: Application, sent: bytes, *, half_close: bool = False) -> list[int]:
    """Sends bytes; the statuses of what comes back until the server closes the connection. May be none.

    Args:
        half_close: tells the server that no more will be sent, as it cannot know by what was.
    """
    return asyncio.run(_statuses_of(urlsplit(application.url).port or 80, sent, half_close))


async def _statuses_of(port: int, sent: bytes, half_close: bool) -> list[int]:
    answer = b""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            if half_close:
                writer.write_eof()
            while part := await reader.read(2**16):
                answer += part
        except ConnectionError:
            pass  # the server closed it while we sent: it has said what it had to say
        finally:
            writer.close()
    return [int(status) for status in STATUS_LINE.findall(answer)]


def request(headers: list[tuple[bytes, bytes]], path: bytes = b"/v1/completions", body: bytes = SMALL) -> bytes:
    """A whole POST with these headers first, after which the connection is to be closed."""
    sent = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    framing = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + sent + framing + body


NAMES = st.sampled_from(
    b"X-Priority,X-Request-ID,Authorization,Content-Type,Accept,Accept-Encoding,Content-Encoding,Cookie,Expect,Host,"
    b"Origin,Upgrade,Forwarded,X-Forwarded-For,User-Agent,traceparent,tracestate,X-Session-Id,X-Gateway-Objective,"
    b"serve_multiplexed_model_id,X-Request-Timeout-Seconds,X-Request-Disconnect-Disabled,X-Vllm-Priority,TE,Range,"
    b"X_Priority,If-None-Match,X-HTTP-Method-Override,Sec-WebSocket-Key,Keep-Alive,Trailer,X-Unknown".split(b",")
)
VALUES = st.one_of(
    st.binary(max_size=40).map(lambda value: re.sub(rb"[\r\n]", b" ", value)),
    st.text(max_size=20).map(lambda value: re.sub(rb"[\r\n]", b" ", value.encode("utf-8", "replace"))),
    st.sampled_from(
        (
            *(b"", b"P0", b"p2, P0", b"\xff", b"\xc3\x28", b"\x00", b"\x7f", b"a" * 9000, b"\xff" * 7000, b"["),
            *(b"100-continue", b"websocket", b"0.0001", b"-1", b"nan", b"inf", b"?1", b"gzip", b"%s%n", b"http://["),
            *(b"Bearer " + KEY.encode(), b"Bearer \xff", b"Basic ====", b"application/json; charset=\xff"),
        )
    ),
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=st.lists(st.tuples(NAMES, VALUES), max_size=6))
@example(headers=[(b"X-Request-ID", b"\xff")])
@example(headers=[(b"X-Request-ID", b"a" * 14_900)])
@example(headers=[(b"X-Session-Id", b"\xff")])
@example(headers=[(b"serve_multiplexed_model_id", b"\xff")])
@example(headers=[(b"X-Request-Timeout-Seconds", b"\xff")])
@example(headers=[(b"X-Request-Disconnect-Disabled", b"\xff")])
@example(headers=[(b"Authorization", b"Bearer \xff"), (b"Authorization", b"Basic \xff")])
@example(headers=[(b"X-Priority", b"P0"), (b"x-priority", b"P0"), (b"X_PRIORITY", b"p2")])
@example(headers=[(b"X-Unknown", b"x")] * 90)
def test_headers_of_any_bytes_give_no_500(application: Application, headers: list[tuple[bytes, bytes]]) -> None:
    statuses = statuses_of(application, request(headers))
    assert statuses
    assert all(status < 500 for status in statuses), statuses


@pytest.mark.parametrize("sent", [b"\xff", b"not sane", b"x" * 14_900, b""], ids=["bytes", "space", "long", "empty"])
def test_request_id_that_is_not_sane_is_replaced_by_one(application: Application, sent: bytes) -> None:
    with httpx.Client(base_url=application.url, timeout=LIMIT_S) as client:
        for method, path in (("POST", COMPLETIONS), ("GET", "/healthz"), ("GET", "/v1/nothing")):
            answer = client.request(method, path, content=SMALL, headers=[(b"X-Request-ID", sent)])
            assert answer.status_code in (200, 404), answer.text
            (told,) = answer.headers.get_list("x-request-id")
            assert re.fullmatch(r"[0-9a-f]{32}", told)


def test_client_cannot_shorten_a_request_by_serves_own_header(http: httpx.Client) -> None:
    answer = http.post(COMPLETIONS, content=SMALL, headers={"X-Request-Timeout-Seconds": "0.000001"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path",
    [
        *(b"/healthz?\xff", b"/\xff", b"/%ff%fe", b"/healthz?%ff", b"//healthz", b"/healthz/", b"/healthz%0a", b"*"),
        *(b"/v1/models/%00", b"/v1/models/%0a/../x", b"/v1/models/" + b"a" * 9000, b"/v1/models/\xe2\x80\xae"),
        *(b"/v1/completions/", b"/v1/chat/completions#x", b"/?" + b"&" * 5000, b"/a b"),
        *(b"http://x/healthz", b"http://[/healthz"),
    ],
)
def test_path_and_host_of_any_bytes_give_no_500(application: Application, path: bytes) -> None:
    hosts = (b"x", b"[", b"a:b", b"x:99999", b"\xff", b"")
    for method, host in itertools.product((b"GET", b"POST", b"OPTIONS", b"BREW"), hosts):
        head = method + b" " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        statuses = statuses_of(application, head)
        assert statuses
        assert all(status < 500 for status in statuses), (method, host, statuses)


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 10000\r\n\r\n" + SMALL,
        POST + b"Content-Length: 5\r\n\r\n" + SMALL,
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + SMALL,
        POST + b"Content-Length: 0\r\n\r\n" + SMALL,
        POST + b"Content-Length: -5\r\n\r\n" + SMALL,
        POST + b"Content-Length: five\r\n\r\n" + SMALL,
        POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + SMALL,
        POST + b"Content-Length: 18446744073709551615\r\n\r\n" + SMALL,
        POST + b"\r\n" + SMALL,
        CHUNKED + b"5\r\n{}\r\n",
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffff\r\n{}",
        CHUNKED + b"2\r\n{}\r\n",
        CHUNKED + b"%x\r\n" % len(SMALL) + SMALL + b"\r\n0\r\n\r\n",
        CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n") + b"2\r\n{}\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\n" + SMALL,
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(SMALL),
        POST
        + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n folded: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\xff\xff: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: x\n\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Many: x\r\n" * 3000 + b"\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"\r\n" * 2000,
        b"\x00" * 2000,
        b"",
    ],
    ids=lambda sent: repr(sent[-40:]),
)
def test_what_is_no_whole_request_ends_without_a_500(application: Application, sent: bytes) -> None:
    assert all(status < 500 for status in statuses_of(application, sent, half_close=True))


def test_no_key_that_was_sent_is_in_any_log(application: Application, http: httpx.Client) -> None:
    for key in (KEY, f"{KEY}\u00e9"):
        for path in (CHAT, "/v1/models", "/status", "/nothing"):
            for scheme in ("Bearer", "Basic", "Token"):
                http.post(path, content=b"{", headers=[("Authorization", f"{scheme} {key}".encode())])
    assert application.has_logged(r"expresslane.ingress .*outcome=rejected")
    text = "".join(path.read_text(errors="replace") for path in application.log_dir.rglob("*") if path.is_file())
    for secret in (KEY, KEY.removeprefix("xl-")[:16], hash_key(KEY)[:16]):
        assert secret not in text


def documented_fields(http: httpx.Client, path: str) -> list[str]:
    """The fields of a request's body, as the OpenAPI document names them."""
    told = http.get("/openapi.json").json()
    reference = told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return list(told["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"])


def assert_answered_or_refused(answer: httpx.Response) -> None:
    """Not the server's fault, and in OpenAI's shape. 501: what the model or its server does not support."""
    if answer.status_code != 200:  # vLLM takes some odd values; what counts is that none breaks it
        assert 400 <= answer.status_code < 500 or answer.status_code == 501, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


ODD_VALUES = (
    *("null", "true", "0", "-1", "0.5", "1e999", "-1e999", "1" + "0" * 40, "18446744073709551616", '""', '"\\u0000"'),
    *('"x"', "[]", "[null]", "[[]]", '[""]', "[-1]", "[1e999]", "{}", '{"a": null}', '{"1": 1e999}', '{"-1": 1}'),
)
"""JSON texts."""


@pytest.mark.parametrize("odd", ODD_VALUES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_odd_value_of_any_documented_field_gives_no_500(http: httpx.Client, path: str, odd: str) -> None:
    whole = BODY | {"max_completion_tokens": 1} if path == CHAT else json.loads(SMALL)
    fields = documented_fields(http, path)
    assert len(fields) > 15
    for field in fields:
        rest = json.dumps({name: value for name, value in whole.items() if name != field})
        assert_answered_or_refused(http.post(path, content=f'{rest[:-1]}, "{field}": {odd}}}'.encode()))


def nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\xef\xbb\xbf" + SMALL,
        SMALL.decode().encode("utf-16"),
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800", "max_tokens": 1}',
        b'{"prompt": "\\u0000\\ufffe\\uffff", "max_tokens": 1}',
        b'{"prompt": "x", "max_tokens": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": "x", "max_tokens": 1, "max_tokens": 2, "model": 5, "model": null}',
        b'{"prompt": "x", "max_tokens": 1, "": 1, "__class__": "x", "self": 1, "model_config": {}, "\\u20ac": 1}',
        b'{"prompt": "x", "max_tokens": ' + b"9" * 4300 + b"}",
        b'{"prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}",
        b'{"service_tier": ' + b"9" * 4300 + b"}",
        b'{"model": "' + b"m" * 100_000 + b'"}',
        b'{"prompt": ' + b"[" * 190 + b"]" * 190 + b"}",
        b'{"prompt": ' + b"[" * 400_000 + b"]" * 400_000 + b"}",
        b'{"prompt": "x", "max_tokens": 1, "unknown": ' + b'{"a":' * 190 + b"1" + b"}" * 190 + b"}",
        b'{"prompt": "' + b"a" * 900_000 + b'", "max_tokens": 1}',
        b'{"prompt": [' + b"1," * 300_000 + b'1], "max_tokens": 1}',
        b'{"prompt": [1.5], "max_tokens": 1}',
        b'{"prompt": [true, null], "max_tokens": 1}',
        b'{"prompt": [18446744073709551616], "max_tokens": 1}',
        f'{{"prompt": "x", "max_tokens": 1, "structured_outputs": {{"json": {nested(60)}}}}}'.encode(),
        f'{{"prompt": "x", "max_tokens": 1, "response_format": {{"type": "json_schema", "json_schema": '
        f'{{"name": "x", "schema": {nested(60)}}}}}}}'.encode(),
    ],
    ids=lambda content: repr(content[:40]),
)
def test_odd_body_gives_no_500(http: httpx.Client, content: bytes) -> None:
    for path in (CHAT, COMPLETIONS):
        sent = content if path == COMPLETIONS else content.replace(b'"prompt": "x"', b'"messages": [{"role":"user"}]')
        assert_answered_or_refused(http.post(path, content=sent))


@pytest.mark.parametrize("length_is_told", [True, False])
def test_body_larger_than_the_limit_is_refused(http: httpx.Client, length_is_told: bool) -> None:
    content = b" " * (MAX_BODY_BYTES + 1)
    answer = http.post(CHAT, content=content if length_is_told else iter([content]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "?"},
        {"Accept": "text/event-stream"},
        {"Accept": "image/png;q=nan"},
    ],
)
def test_body_is_read_as_json_whatever_its_type_is_called(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post(COMPLETIONS, content=SMALL, headers=headers).status_code == 200


def test_compressed_body_is_refused(http: httpx.Client) -> None:
    answer = http.post(COMPLETIONS, content=gzip.compress(SMALL), headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_structured_outputs_of_a_wrong_type_are_refused(http: httpx.Client) -> None:
    """vLLM's validators look into the field before its type is checked, and stumble."""
    for path, odd in itertools.product((CHAT, COMPLETIONS), ODD_VALUES):
        whole = BODY if path == CHAT else json.loads(SMALL)
        answer = http.post(path, content=f'{json.dumps(whole)[:-1]}, "structured_outputs": {odd}}}'.encode())
        assert_answered_or_refused(answer)


@pytest.mark.parametrize("grammar", [{"grammar": "root ::= root"}, {"json": {"$ref": "#"}}])
def test_grammar_that_no_text_meets_is_the_callers_fault(http: httpx.Client, grammar: dict[str, Any]) -> None:
    """vLLM calls it an internal error, and goes on."""
    answer = http.post(CHAT, json=BODY | {"structured_outputs": grammar})
    assert_answered_or_refused(answer)


@pytest.mark.parametrize("field", ["top_k", "stream_interval", "min_tokens", "seed", "n", "prompt_logprobs"])
@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40])
def test_number_that_does_not_fit_64_bits_is_refused(http: httpx.Client, field: str, number: int) -> None:
    """vLLM takes some of them, and fails to send them to its engine."""
    for path in (CHAT, COMPLETIONS):
        answer = http.post(path, json=(BODY if path == CHAT else json.loads(SMALL)) | {field: number})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def no_fault_of_the_server(_: Any, response: schemathesis.Response, __: schemathesis.Case) -> None:
    """As schemathesis' own check, which knows no 501."""
    assert response.status_code < 500 or response.status_code == 501, response.text


SURE_TO_BE_MET = {CHAT: (BODY, BODY | {"n": 0}), COMPLETIONS: (json.loads(SMALL), {"prompt": 0})}
"""A good body and a bad one for each path: chance may make only one kind."""
CHECKS = [
    no_fault_of_the_server,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def short(_: Any, body: Any) -> Any:
    """The same body, for an answer of one token; one for files or batches as it is."""
    if not isinstance(body, dict) or body.keys() & {"purpose", "input_file_id"}:
        return body
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens", "n") if isinstance(body.get(name), int)}
    served = {"model": MODEL} if isinstance(body.get("model"), str) else {}
    return body | {"max_tokens": 1} | limits | served


def test_deployment_does_as_its_document_says(application: Application) -> None:
    """What schemathesis makes of the document, good requests and bad ones, met by vLLM's own validation."""
    schema = schemathesis.openapi.from_url(f"{application.url}/openapi.json")
    schema.hook("map_body")(short)
    met = set()

    def check_one(case: schemathesis.Case) -> None:
        response = case.call_and_validate(checks=CHECKS, timeout=LIMIT_S)
        met.add((case.path, response.status_code))

    for found in schema.get_all_operations():
        operation = found.ok()
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode))
        check = given(case=cases)(check_one)
        for body in SURE_TO_BE_MET.get(operation.path, ()):
            check = example(case=operation.Case(body=body, media_type="application/json"))(check)
        settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))(check)()
    assert {(CHAT, 200), (COMPLETIONS, 200), (CHAT, 400), (COMPLETIONS, 400)} <= met

"""The application over plain HTTP: classes, headers, refusals. Nothing that a client sends gives a 500."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.e2e.conftest import MAX_BODY_BYTES, MODEL

pytestmark = pytest.mark.e2e
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("headers", "extra", "expected"),
    [
        ({}, {}, "P1"),
        ({"x-priority": "ReAlTiMe"}, {}, "P0"),
        ({"X_Priority": "p2"}, {}, "P2"),
        ({"X-Gateway-Objective": "nightly"}, {}, "P2"),
        ({}, {"service_tier": "priority"}, "P0"),
        ({}, {"max_tokens": 600}, "P2"),
        ({"X-Priority": "P2"}, {"service_tier": "priority"}, "P2"),
        ({"Priority": "u=0", "X-Vllm-Priority": "0"}, {"priority": 0}, "P1"),
    ],
)
def test_class_is_told_in_the_answer(
    http: httpx.Client, headers: dict[str, str], extra: dict[str, Any], expected: str
) -> None:
    answer = http.post(CHAT, json=BODY | extra, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-priority-class"] == expected


def test_request_id_is_the_clients_own(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=BODY, headers={"X-Request-Id": "my-id.1"})
    assert answer.headers.get_list("x-request-id") == ["my-id.1"]
    assert answer.json()["id"].endswith("my-id.1")


def test_request_id_is_made_when_none_is_sent(http: httpx.Client) -> None:
    first, second = (http.post(CHAT, json=BODY).headers.get_list("x-request-id") for _ in range(2))
    assert len(first) == len(second) == 1
    assert first != second


def test_same_request_id_twice_at_once_is_no_conflict(http: httpx.Client) -> None:
    headers = {"X-Request-Id": "twice"}
    body = BODY | {"max_tokens": 50, "stream": True}
    with http.stream("POST", CHAT, json=body, headers=headers) as first:
        assert http.post(CHAT, json=BODY, headers=headers).status_code == 200
        assert "[DONE]" in first.read().decode()


def test_probes_answer(http: httpx.Client) -> None:
    assert http.get("/healthz").text == "ok\n"
    assert http.get("/readyz").text == "ready\n"


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "needle"),
    [
        ("POST", CHAT, b"", 400, "no body"),
        ("POST", CHAT, b"{", 400, "not valid JSON"),
        ("POST", CHAT, b"[]", 400, "an array"),
        ("POST", CHAT, b"\xff\xfe", 400, "not valid JSON"),
        ("POST", CHAT, b"[" * 100_000, 400, "not valid JSON"),
        ("POST", CHAT, b'{"messages": NaN}', 400, "not valid JSON"),
        ("POST", CHAT, b"{}", 400, "messages"),
        ("POST", CHAT, b'{"messages": "hello"}', 400, "messages"),
        ("POST", CHAT, b'{"messages": []}', 400, "message"),
        ("POST", CHAT, b'{"model": 3, "messages": []}', 400, "model"),
        ("POST", "/v1/completions", b"{}", 400, "prompt"),
        ("POST", "/v1/completions", b'{"prompt": {"a": 1}}', 400, "prompt"),
        ("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": -1}', 400, "max_tokens"),
        ("POST", "/v1/completions", b'{"prompt": [999999999]}', 400, "vocab"),
        ("POST", "/v1/nothing", b"{}", 404, "/v1/nothing"),
        ("GET", CHAT, b"", 405, "GET"),
        ("POST", CHAT, b" " * (MAX_BODY_BYTES + 1), 413, str(MAX_BODY_BYTES)),
    ],
)
def test_bad_request_is_refused_in_openais_shape(
    http: httpx.Client, method: str, path: str, content: bytes, status: int, needle: str
) -> None:
    answer = http.request(method, path, content=content)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert needle in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", [None]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": 5, "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{}]}]),
        ("max_tokens", 10**30),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("temperature", -1),
        ("temperature", 10**400),
        ("top_p", 5),
        ("n", 0),
        ("n", 10**9),
        ("seed", "x"),
        ("seed", 10**30),
        ("stop", {"a": 1}),
        ("stop", [""] * 3),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"999999": 1}),
        ("top_logprobs", 10**6),
        ("response_format", {"type": "nonsense"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}),
        ("structured_outputs", {"regex": "("}),
        ("structured_outputs", {"grammar": "nonsense ::"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "sometimes"),
        ("chat_template", "{{ broken"),
        ("stream_options", {"include_usage": True}),
        ("stream", "perhaps"),
        ("prompt_logprobs", -5),
        ("cache_salt", ""),
        ("vllm_xargs", {"a": {"b": 1}}),
        ("truncate_prompt_tokens", -7),
        ("bad_words", [""]),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", []),
        ("min_tokens", 10),
        ("service_tier", "scale"),
        ("model", ["tiny"]),
    ],
)
def test_wrong_value_is_never_a_500(http: httpx.Client, field: str, value: object) -> None:
    for stream in (False, True):
        body: dict[str, Any] = {**BODY, "logprobs": True, "stream": stream, field: value}
        answer = http.post(CHAT, json=body)
        if answer.status_code != 200:  # some values are lenient in vLLM; what counts is that none breaks the server
            assert 400 <= answer.status_code < 500 or answer.status_code == 501, answer.text
            assert answer.json()["error"]["message"]
    assert http.post(CHAT, json=BODY).status_code == 200

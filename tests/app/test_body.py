import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from app.body import DROPPED_FIELDS, for_engine, parse_json_object, read_body
from slo.errors import Rejected, RejectReason

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


class Upload:
    """A request whose body comes in `parts`; counts those that were read."""

    def __init__(self, *parts: bytes, content_length: str | None = None, leaves: bool = False) -> None:
        self._parts = self._messages(parts, leaves)
        self.num_read = 0
        headers = [] if content_length is None else [(b"content-length", content_length.encode("latin-1"))]
        self.request = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)

    async def _messages(self, parts: tuple[bytes, ...], leaves: bool) -> AsyncIterator[Message]:
        for index, part in enumerate(parts):
            more = leaves or index < len(parts) - 1
            yield {"type": "http.request", "body": part, "more_body": more}
        yield {"type": "http.disconnect"}

    async def _receive(self) -> Message:
        self.num_read += 1
        return await anext(self._parts)


@pytest.mark.parametrize("parts", [[b'{"a": 1}'], [b'{"a"', b"", b": 1}"], [b"{", b'"a": 1', b"}", b""]])
async def test_read_body_joins_the_parts(parts: list[bytes]) -> None:
    assert await read_body(Upload(*parts).request, 100) == b'{"a": 1}'


async def test_read_body_takes_a_body_of_just_the_limit() -> None:
    body = b'{"a": 1}'
    assert await read_body(Upload(body, content_length=str(len(body))).request, len(body)) == body


async def test_read_body_refuses_before_reading_when_the_declared_length_is_too_large() -> None:
    upload = Upload(b'{"a": 1}', content_length="9")
    with pytest.raises(Rejected, match="larger than the limit of 8 bytes") as raised:
        await read_body(upload.request, 8)
    assert raised.value.reason is RejectReason.TOO_LARGE
    assert upload.num_read == 0


@pytest.mark.parametrize("content_length", [None, "1", "", "-1", "none", "²", "9" * 5000])
async def test_read_body_stops_reading_at_the_limit_when_no_length_tells(content_length: str | None) -> None:
    upload = Upload(b"[" * 5, b"[" * 4, b"[" * 1000, content_length=content_length)
    with pytest.raises(Rejected, match="larger than the limit of 8 bytes") as raised:
        await read_body(upload.request, 8)
    assert raised.value.reason is RejectReason.TOO_LARGE
    assert upload.num_read == 2


async def test_read_body_raises_client_disconnect_when_the_client_leaves_before_the_end() -> None:
    with pytest.raises(ClientDisconnect):
        await read_body(Upload(b'{"a": 1}', leaves=True).request, 100)


@pytest.mark.parametrize("raw", [b"", b" ", b"\r\n\t "])
def test_parse_json_object_refuses_an_empty_body(raw: bytes) -> None:
    with pytest.raises(Rejected, match="no body; a JSON object is expected"):
        parse_json_object(raw)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"hello", id="text"),
        pytest.param(b"a=1&b=2", id="form"),
        pytest.param(b'{"a": 1', id="cut off"),
        pytest.param(b'{"a": 1} {"b": 2}', id="two objects"),
        pytest.param(b"{'a': 1}", id="single quotes"),
        pytest.param(b'{"a": 1,}', id="trailing comma"),
        pytest.param(b'{"a": NaN}', id="NaN"),
        pytest.param(b'{"a": Infinity}', id="Infinity"),
        pytest.param(b'{"a": -Infinity}', id="-Infinity"),
        pytest.param(b'{"a": "\\ud800"}', id="lone high surrogate"),
        pytest.param(b'{"a": "\\udc00 x"}', id="lone low surrogate"),
        pytest.param(b'{"\\ud800": 1}', id="lone surrogate in a key"),
        pytest.param(b'{"a": "\xed\xa0\x80"}', id="surrogate as UTF-8"),
        pytest.param(b'{"a": "\xff"}', id="no UTF-8"),
        pytest.param('{"a": "é"}'.encode("latin-1"), id="latin-1"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'\xef\xbb\xbf{"a": 1}', id="byte order mark"),
        pytest.param(b'{"a": "\n"}', id="control character"),
        pytest.param(b"\x00", id="NUL"),
        pytest.param(b'{"a": ' + b"[" * 100_000, id="deep arrays, cut off"),
        pytest.param(b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}", id="deep arrays"),
        pytest.param(b'{"a": ' * 1000 + b"1" + b"}" * 1000, id="deep objects"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", id="5000 digits"),
    ],
)
def test_parse_json_object_refuses_what_is_no_json(raw: bytes) -> None:
    with pytest.raises(Rejected, match=r"^the body is not valid JSON: ") as raised:
        parse_json_object(raw)
    assert raised.value.reason is RejectReason.INVALID
    assert len(raised.value.message) < 200


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"[]", "an array"),
        (b'[{"a": 1}]', "an array"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (b'"text"', "a string"),
        (b"12", "a number"),
        (b"1.5", "a number"),
    ],
)
def test_parse_json_object_refuses_what_is_no_object(raw: bytes, kind: str) -> None:
    with pytest.raises(Rejected, match=f"^the body must be a JSON object, not {kind}$"):
        parse_json_object(raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": [123456789012345678901234567890]}', {"a": [123456789012345678901234567890]}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"ż": "日本"}'.encode(), {"ż": "日本"}),
        (b' {"a": null}\n', {"a": None}),
        (b"{}", {}),
    ],
)
def test_parse_json_object_reads_an_object(raw: bytes, expected: dict[str, Any]) -> None:
    assert parse_json_object(raw) == expected


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(raw=st.binary() | st.text().map(str.encode) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_parse_json_object_gives_an_object_or_rejects_whatever_comes(raw: bytes) -> None:
    try:
        value = parse_json_object(raw)
    except Rejected:
        return
    assert isinstance(value, dict)


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(value=st.dictionaries(st.text(), ANY_JSON, max_size=5), cut=st.integers(0, 300), junk=st.binary(max_size=3))
def test_parse_json_object_gives_an_object_or_rejects_when_json_is_damaged(
    value: dict[str, Any], cut: int, junk: bytes
) -> None:
    raw = json.dumps(value, ensure_ascii=False).encode()
    with contextlib.suppress(Rejected):
        assert isinstance(parse_json_object(raw[:cut] + junk + raw[cut + 1 :]), dict)


@settings(derandomize=True, deadline=None, database=None)
@given(value=st.dictionaries(st.text(), ANY_JSON, max_size=5))
def test_parse_json_object_gives_what_was_written(value: dict[str, Any]) -> None:
    assert parse_json_object(json.dumps(value).encode()) == value


def test_for_engine_drops_what_a_client_must_not_decide_and_keeps_the_rest() -> None:
    body = {"model": "tiny", "prompt": "x", "Priority": 1, "vllm_xargs": {"priority": 0}}
    assert for_engine({**body, **dict.fromkeys(DROPPED_FIELDS, 0)}) == body
    assert {"priority", "request_id"} <= set(DROPPED_FIELDS)


def test_for_engine_leaves_the_clients_body_as_it_was() -> None:
    body = {"priority": 0, "prompt": "x"}
    for_engine(body)
    assert body == {"priority": 0, "prompt": "x"}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**4000])
def test_parse_json_object_refuses_a_field_whose_number_does_not_fit_64_bits(number: int) -> None:
    with pytest.raises(Rejected, match="'top_k': the number does not fit 64 bits") as raised:
        parse_json_object(f'{{"prompt": "x", "top_k": {number}}}'.encode())
    assert raised.value.param == "top_k"


def test_parse_json_object_takes_the_numbers_that_fit_64_bits_and_larger_ones_in_schemas() -> None:
    body = {"seed": 2**63 - 1, "top_k": -(2**63), "temperature": 1e300, "tools": [{"maximum": 2**64}]}
    assert parse_json_object(json.dumps(body).encode()) == body

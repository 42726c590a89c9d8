"""Reading a request's body: bounded in size, JSON, an object. Nothing else reaches a replica."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from app.errors import MAX_QUOTED, quoted
from slo.errors import Rejected, RejectReason

DROPPED_FIELDS = ("priority", "request_id", "kv_transfer_params", "ec_transfer_params")
"""Fields of vLLM's protocol that a client must not set: the engine's priority, ids, and moves between engines."""

MIN_NUMBER, MAX_NUMBER = -(2**63), 2**63 - 1


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        Rejected: it is larger than `max_bytes` (told before it is read whole).
        starlette.requests.ClientDisconnect: the client left before it was sent.
    """
    raw = bytearray()
    if num_declared(request.headers.get("content-length")) > max_bytes:
        raise _too_large(max_bytes)
    async for part in request.stream():
        raw += part
        if len(raw) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(raw)


def num_declared(content_length: str | None) -> int:
    """Bytes that a request's `content-length` tells; 0: it tells none."""
    return int(content_length) if content_length and re.fullmatch(r"[0-9]{1,18}", content_length) else 0


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """`raw` as a JSON object. Refuses NaN, Infinity, lone surrogates and nesting too deep to handle.

    A number beyond a float's range (`1e999`) reads as infinity; vLLM refuses it where it would harm. A field that is a
    whole number must fit 64 bits: vLLM passes some on to its engine unchecked, and then fails to send them there.

    Raises:
        Rejected: `raw` is empty, no JSON, or no object, or a field's number is too large.
    """
    if not raw.strip():
        raise Rejected("the request has no body; a JSON object is expected")
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise Rejected(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Rejected(f"the body must be a JSON object, not {_json_type(value)}")
    for name, field in value.items():
        if isinstance(field, int) and not MIN_NUMBER <= field <= MAX_NUMBER:
            raise Rejected(f"{quoted(name)}: the number does not fit 64 bits", param=name[:MAX_QUOTED])
    return value


def for_engine(body: dict[str, Any]) -> dict[str, Any]:
    """The body without the fields that decide what only the ingress may decide."""
    return {key: value for key, value in body.items() if key not in DROPPED_FIELDS}


def _too_large(max_bytes: int) -> Rejected:
    return Rejected(f"the body is larger than the limit of {max_bytes} bytes", reason=RejectReason.TOO_LARGE)


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case list():
            return "an array"
        case str():
            return "a string"
        case _:
            return "a number"

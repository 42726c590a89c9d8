"""Whether the lines of an input file can run. Pure: bytes in, lines and faults out.

A line is checked for what can be told without an engine. What is wrong with a request's own fields, an engine says when
it runs, in the error file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json, to_json

from slo.adapters import is_adapter_name
from slo.batch import LineFault

MAX_FAULTS: Final = 100
"""Told of one file; the rest of it is not looked at."""
MAX_ID_CHARS: Final = 512
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class CheckedLine:
    """A line that can run: its client's name for it, and where it lies in the file."""

    custom_id: str
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """All lines of a file; with faults, none of them runs."""

    lines: tuple[CheckedLine, ...]
    faults: tuple[LineFault, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the lines must be.

    Attributes:
        endpoint: the path that each one asks.
        model_names: what `model` may be.
        takes_adapters: it may also be an adapter in a directory; the line's own answer tells whether it is there.
        max_line_bytes: of one line.
    """

    endpoint: str
    model_names: Collection[str]
    max_lines: int
    max_line_bytes: int
    takes_adapters: bool = False


class _Wrong(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def at(self, line: int | None) -> LineFault:
        return LineFault(code=self.code, message=self.message, param=self.param, line=line)


def check_lines(chunks: Iterable[bytes], expected: Expected) -> Checked:
    """Checks every line of a file; blank ones are passed over. Never holds more of it than a line and a chunk."""
    lines: list[CheckedLine] = []
    faults: list[LineFault] = []
    ids: dict[str, int] = {}
    for position, (start, line) in enumerate(_split(chunks, expected.max_line_bytes), 1):
        if line is not None and not line.strip():
            continue
        try:
            custom_id = _check(line, expected)
            if (first := ids.setdefault(custom_id, position)) != position:
                raise _Wrong("duplicate_custom_id", f"custom_id: line {first} has the same", "custom_id")
            lines.append(CheckedLine(custom_id, start, len(line or b"")))
        except _Wrong as wrong:
            faults.append(wrong.at(position))
        if len(lines) > expected.max_lines:
            faults.append(_Wrong("too_many_lines", f"a batch has at most {expected.max_lines} lines").at(position))
            break
        if len(faults) >= MAX_FAULTS:
            break
    if not lines and not faults:
        faults.append(_Wrong("empty_file", "the file has no lines").at(None))
    return Checked(tuple(lines), tuple(faults))


def body_of(line: bytes) -> bytes:
    """The request of a line that was checked, as JSON. A number that is none stays so, for the ingress to refuse."""
    return to_json(from_json(_without_bom(line))["body"], inf_nan_mode="constants")


def _split(chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with where it starts, without its end; None in the place of one that is too long."""
    start, length, kept = 0, 0, bytearray()
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            length += len(part)
            yield start, bytes(kept + part) if length <= max_line_bytes else None
            start += length + 1
            length, kept = 0, bytearray()
        length += len(rest)
        if length <= max_line_bytes:
            kept += rest
    if length:
        yield start, bytes(kept) if length <= max_line_bytes else None


def _check(line: bytes | None, expected: Expected) -> str:
    """The custom_id of a good line."""
    if line is None:
        raise _Wrong("line_too_large", f"the line is larger than the limit of {expected.max_line_bytes} bytes")
    asked = _object(line)
    for name in _FIELDS:
        if name not in asked:
            raise _Wrong("missing_required_parameter", f"{name} is missing", name)
    custom_id, body = asked["custom_id"], asked["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS or "\0" in custom_id:
        message = f"custom_id: must be a string of 1 to {MAX_ID_CHARS} characters, none of them NUL"
        raise _Wrong("invalid_custom_id", message, "custom_id")
    if asked["method"] != "POST":
        raise _Wrong("invalid_method", "method: must be POST", "method")
    if asked["url"] != expected.endpoint:
        raise _Wrong("invalid_url", f"url: must be the batch's endpoint, {expected.endpoint}", "url")
    if not isinstance(body, dict):
        raise _Wrong("invalid_body", "body: must be an object", "body")
    _check_body(body, expected)
    return custom_id


def _check_body(body: dict[str, Any], expected: Expected) -> None:
    if body.get("stream"):
        raise _Wrong("stream_not_supported", "body.stream: a line is answered at once, not in a stream", "body.stream")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise _Wrong("invalid_model", "body.model: must be a string", "body.model")
    may_be_adapter = expected.takes_adapters and is_adapter_name(model)
    if model is not None and model not in expected.model_names and not may_be_adapter:
        served = ", ".join(expected.model_names)
        raise _Wrong("model_not_found", f"body.model: {model[:100]!r} does not exist; served: {served}", "body.model")


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = from_json(_without_bom(line), allow_inf_nan=False)
    except ValueError as error:
        raise _Wrong("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _Wrong("invalid_json_line", "the line must be a JSON object")
    return value


def _without_bom(line: bytes) -> bytes:
    """Some editors begin a file with it."""
    return line.removeprefix(_BOM)

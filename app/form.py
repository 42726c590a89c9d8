"""Reading `multipart/form-data` as it comes, so that a file passes through without being held.

Starlette's own reader puts files of any size on this process's disk first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from slo.errors import Rejected

MAX_PARTS: Final = 100
"""Of one form; an upload has two to four."""


@dataclass(frozen=True, slots=True)
class PartBegins:
    """A field or a file; `filename` is None where none was sent."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartContent:
    """Some of its content."""

    content: bytes


@dataclass(frozen=True, slots=True)
class PartEnds:
    """All of its content has come."""


FormEvent = PartBegins | PartContent | PartEnds


class FormReader:
    """A form, fed piece by piece.

    Args:
        content_type: the request's header.

    Raises:
        Rejected: that is no form.
    """

    def __init__(self, content_type: str | None) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise Rejected("the body must be multipart/form-data with a boundary", param="content-type")
        self._events: list[FormEvent] = []
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._num_parts = 0
        self._is_whole = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": lambda data, start, end: self._events.append(PartContent(data[start:end])),
                    "on_part_end": lambda: self._events.append(PartEnds()),
                    "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _no_form(error) from None

    def feed(self, data: bytes) -> Sequence[FormEvent]:
        """What `data` brings. Raises Rejected: it is no form."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _no_form(error) from None
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """The body has ended. Raises Rejected: the form has not."""
        if not self._is_whole:
            raise Rejected("the form ends in the middle; its last boundary is missing")

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise Rejected(f"the form has more than {MAX_PARTS} parts")
        self._disposition = b""

    def _end_header(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if (name := options.get(b"name")) is None:
            raise Rejected("a part of the form has no name")
        filename = options.get(b"filename")
        self._events.append(PartBegins(_text(name), None if filename is None else _text(filename)))

    def _end(self) -> None:
        self._is_whole = True


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _no_form(error: FormParserError) -> Rejected:
    return Rejected(f"the body is no valid form: {error}")

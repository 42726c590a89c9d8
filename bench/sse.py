"""OpenAI's stream of server-sent events, from bytes as they come in to what they mean for a measurement. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_DATA = b"data:"
_DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    def shows_something(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    text: Any = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error that came in a stream, or as a body: OpenAI's code, and its message."""

    code: str | None
    message: str


@dataclass(slots=True)
class Heard:
    """What the bytes of one read brought.

    Attributes:
        num_token_events: events that show the user something of an answer. The role alone, an end without text and the
            usage show nothing. One event may carry several tokens; it counts once.
        is_done: `[DONE]` was among them.
    """

    num_token_events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: StreamError | None = None
    is_done: bool = False


class EventReader:
    """Takes a stream's bytes in any pieces. Use one for each answer."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> Heard:
        """What `received` completes.

        Raises:
            ValueError: an event is not JSON, or not of OpenAI's form.
        """
        *lines, self._rest = (self._rest + received).split(b"\n")
        heard = Heard()
        for line in lines:
            if not line.startswith(_DATA):
                continue  # a blank line, a comment (often a ping), or a field that OpenAI does not use
            content = line[len(_DATA) :].strip()
            if content == _DONE:
                heard.is_done = True
            elif content:
                self._take(_decoded(content), heard)
        return heard

    def _take(self, event: _Event, heard: Heard) -> None:
        if event.error is not None:
            heard.error = error_of(event.error)
        for choice in event.choices or ():
            if choice.text or (choice.delta is not None and choice.delta.shows_something()):
                heard.num_token_events += 1
                break  # of several choices the first stands for all: their tokens come in one step
        if event.usage is not None:
            heard.prompt_tokens, heard.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens


_DECODER = msgspec.json.Decoder(_Event)


def _decoded(content: bytes) -> _Event:
    try:
        return _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no event of OpenAI's form: {error}") from None


def error_of(error: Any) -> StreamError:
    """OpenAI's error object; whatever else a server puts there is its message."""
    if not isinstance(error, dict):
        return StreamError(None, str(error))
    code = error.get("code")
    return StreamError(None if code is None else str(code), str(error.get("message", error)))


def error_in_body(body: bytes) -> StreamError:
    """The error that an answer without a stream carries."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return StreamError(None, body.decode(errors="replace"))
    if isinstance(document, dict) and "error" in document:
        return error_of(document["error"])
    return StreamError(None, str(document))

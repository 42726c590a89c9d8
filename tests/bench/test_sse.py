import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sse import EventReader, Heard, StreamError, error_in_body

TOKEN = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
TEXT = {"choices": [{"index": 0, "text": "a"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}


def stream(*documents: dict[str, Any] | str, end: str = "\n\n") -> bytes:
    texts = (d if isinstance(d, str) else json.dumps(d) for d in documents)
    return "".join(f"data: {text}{end}" for text in texts).encode()


def heard(received: bytes) -> Heard:
    return EventReader().feed(received)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"delta": {"content": "a"}}, 1),
        ({"delta": {"reasoning_content": "a"}}, 1),
        ({"delta": {"reasoning": "a"}}, 1),
        ({"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}, 1),
        ({"text": "a"}, 1),
        ({"text": " "}, 1),
        ({"delta": {"content": "last"}, "finish_reason": "stop"}, 1),
        ({"delta": {"role": "assistant", "content": ""}}, 0),
        ({"delta": {}, "finish_reason": "stop"}, 0),
        ({"delta": {"content": None}}, 0),
        ({"text": "", "finish_reason": "length"}, 0),
    ],
)
def test_reader_counts_events_that_show_something(choice: dict[str, Any], expected: int) -> None:
    assert heard(stream({"choices": [choice]})).num_token_events == expected


def test_reader_counts_an_event_once_however_many_tokens_or_choices_it_has() -> None:
    assert heard(stream({"choices": [{"text": "one two three"}]})).num_token_events == 1
    assert heard(stream({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]})).num_token_events == 1
    assert heard(stream(TEXT, TOKEN)).num_token_events == 2


def test_reader_takes_usage_and_the_end() -> None:
    assert heard(stream(USAGE, "[DONE]")) == Heard(prompt_tokens=3, output_tokens=9, is_done=True)


def test_reader_passes_over_comments_blank_lines_and_other_fields() -> None:
    assert heard(b": ping\n\nevent: x\nid: 1\n\n" + stream(TOKEN)) == Heard(num_token_events=1)


def test_reader_takes_lines_that_end_with_carriage_returns_and_no_blank_after_the_colon() -> None:
    assert heard(stream(TOKEN, "[DONE]", end="\r\n\r\n")) == Heard(num_token_events=1, is_done=True)
    assert heard(b"data:" + json.dumps(TOKEN).encode() + b"\n").num_token_events == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "late", "code": "deadline_exceeded"}, StreamError("deadline_exceeded", "late")),
        ({"message": "bad", "code": 500}, StreamError("500", "bad")),
        ({"message": "bad", "code": None}, StreamError(None, "bad")),
        ("plain", StreamError(None, "plain")),
    ],
)
def test_reader_tells_an_error_in_the_stream(error: object, expected: StreamError) -> None:
    assert heard(stream({"error": error})).error == expected
    assert error_in_body(json.dumps({"error": error}).encode()) == expected


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff", b""])
def test_error_in_body_is_the_body_when_it_is_not_openais(body: bytes) -> None:
    assert error_in_body(body).code is None


@pytest.mark.parametrize("content", ["{", "[]", '{"choices": 3}', '{"choices": [{"delta": 1}]}'])
def test_reader_refuses_what_is_no_event(content: str) -> None:
    with pytest.raises(ValueError, match="no event of OpenAI's form"):
        heard(stream(content))


@given(st.data())
def test_reader_hears_the_same_in_whatever_pieces_the_stream_comes(data: st.DataObject) -> None:
    whole = b": ping\n\n" + stream(TOKEN, {"choices": [{"text": "übergrößt"}]}, TEXT, USAGE, "[DONE]")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    reader = EventReader()
    parts = [reader.feed(whole[a:b]) for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert sum(part.num_token_events for part in parts) == 3
    assert [part.output_tokens for part in parts if part.output_tokens is not None] == [9]
    assert [part.is_done for part in parts if part.is_done] == [True]

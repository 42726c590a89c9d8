"""Mutations tried by hand, each found by a test here: tokens given to the role's event; the time of the second replica
told; events replayed to the client; a closing event sent twice; a tool call that had begun continued."""

from __future__ import annotations

import pytest

from replicas.resumption.events import EventFilter
from replicas.resumption.progress import CallProgress
from slo.messages import Chunk, Resumption

ROLE = 'data: {"id":"x","created":200,"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
TEXT = 'data: {"id":"x","created":200,"choices":[{"index":0,"delta":{"content":"\\"created\\":300"}}]}\n\n'
TOOL = 'data: {"id":"x","created":200,"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
USAGE, DONE = 'data: {"id":"x","created":200,"choices":[],"usage":{}}\n\n', "data: [DONE]\n\n"


def test_filter_gives_the_role_no_token_and_the_next_event_all_of_them() -> None:
    progress = CallProgress()
    events = EventFilter(progress, begins_with_role=True)
    progress.note([1, 2], "stop")
    assert events.chunk(ROLE, False) == Chunk(ROLE, False)
    assert events.chunk(TEXT, True) == Chunk(TEXT, True, (1, 2), "stop")
    assert events.chunk(DONE, False) == Chunk(DONE, False)


def test_filter_gives_the_first_event_its_tokens_when_no_role_comes_before() -> None:
    progress = CallProgress()
    progress.note([1], None)
    assert EventFilter(progress, begins_with_role=False).chunk(TEXT, True) == Chunk(TEXT, True, (1,))


def test_filter_drops_what_is_replayed_and_gives_what_follows_the_first_answers_time() -> None:
    progress = CallProgress(Resumption((1,), created=100))
    events = EventFilter(progress, begins_with_role=True)
    assert events.chunk(ROLE, False) is None
    assert events.chunk(TEXT, True) is None
    progress.is_replaying = False
    progress.note([2], None)
    chunk = events.chunk(TEXT, True)
    assert chunk == Chunk(TEXT.replace('"created":200', '"created":100'), True, (2,))
    assert progress.failure is None


def test_filter_keeps_the_time_when_the_first_answers_is_not_known() -> None:
    progress = CallProgress(Resumption(()))
    progress.is_replaying = False
    assert EventFilter(progress, begins_with_role=False).chunk(TEXT, True) == Chunk(TEXT)


@pytest.mark.parametrize(("num_closing", "sent"), [(0, [USAGE, DONE]), (1, [DONE]), (2, [])])
def test_filter_sends_the_closing_events_that_are_missing(num_closing: int, sent: list[str]) -> None:
    progress = CallProgress(Resumption((1,), None, "stop", num_closing))
    events = EventFilter(progress, begins_with_role=True)
    replayed = [events.chunk(event, True) for event in (ROLE, TEXT, TOOL)]
    progress.is_replaying = False
    chunks = [events.chunk(event, False) for event in (USAGE, DONE)]
    assert replayed == [None] * 3
    assert [chunk.events for chunk in chunks if chunk is not None] == sent
    assert progress.failure is None, "the tool call was complete"


def test_filter_fails_the_call_when_a_tool_call_had_begun() -> None:
    progress = CallProgress(Resumption((1,)))
    assert EventFilter(progress, begins_with_role=False).chunk(TOOL, True) is None
    assert progress.failure is not None
    assert "a tool call had begun" in progress.failure.message


def test_filter_lets_tool_calls_through_that_are_new() -> None:
    progress = CallProgress(Resumption((1,)))
    progress.is_replaying = False
    assert EventFilter(progress, begins_with_role=False).chunk(TOOL, True) == Chunk(TOOL)
    assert progress.failure is None

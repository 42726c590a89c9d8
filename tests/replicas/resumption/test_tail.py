"""Mutations tried by hand, each found by a test here: a stop string that begins in the tail missed; one that does not
taken for one that does; text that was sent sent again; text held back for ever.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.outputs import CompletionOutput

from replicas.resumption.tail import WatchedTail


def output(text: str, finish_reason: str | None = None) -> CompletionOutput:
    return CompletionOutput(0, text, [1], None, None, finish_reason=finish_reason)


def read(tail: WatchedTail, *texts: str) -> tuple[str, CompletionOutput]:
    """The text that comes out, and the last output that was read."""
    sent, last = "", output("")
    for number, text in enumerate(texts, start=1):
        last = output(text, "length" if number == len(texts) else None)
        has_ended = not tail.is_over and tail.read(last)
        sent += last.text
        if has_ended:
            break
    return sent, last


@pytest.mark.parametrize("texts", [("ST", "OP", "no"), ("S", "T", "O", "P"), ("STOP",), ("STOPSTOP", "x")])
def test_tail_lets_text_through_when_no_stop_string_begins_in_it(texts: tuple[str, ...]) -> None:
    """vLLM finds those that begin after the tail."""
    sent, last = read(WatchedTail("abc", 0, ["STOP"], includes_stop=False), *texts)
    assert (sent, last.finish_reason) == ("abc" + "".join(texts), "length")


@pytest.mark.parametrize(
    ("includes_stop", "num_sent", "expected"),
    [(False, 0, "a"), (True, 3, "OP"), (True, 0, "aSTOP")],
)
def test_tail_ends_the_answer_at_a_stop_string_that_begins_in_it(
    includes_stop: bool, num_sent: int, expected: str
) -> None:
    sent, last = read(WatchedTail("aST", num_sent, ["no", "STOP"], includes_stop), "O", "Pxy", "z")
    assert sent == expected
    assert (last.finish_reason, last.stop_reason) == ("stop", "STOP")


def test_tail_takes_the_stop_string_that_ends_first() -> None:
    sent, last = read(WatchedTail("xab", 0, ["abcdef", "bcd"], includes_stop=False), "cdef")
    assert (sent, last.stop_reason) == ("xa", "bcd")


def test_tail_does_not_look_at_what_was_there_before() -> None:
    """It was watched then; with a least length it may stand there."""
    sent, last = read(WatchedTail("aSTOP", 5, ["STOP"], includes_stop=True), "abcdef")
    assert (sent, last.finish_reason) == ("abcdef", "length")


def test_tail_is_sent_at_the_end_of_a_short_answer() -> None:
    assert read(WatchedTail("aST", 0, ["STOP"], includes_stop=False), "O")[0] == "aSTO"


def test_tail_is_over_at_once_when_it_is_empty() -> None:
    assert WatchedTail("", 0, ["STOP"], includes_stop=False).is_over


@given(
    st.text("ab", min_size=1, max_size=4),
    st.lists(st.text("ab", max_size=3), min_size=1, max_size=6),
    st.lists(st.text("ab", min_size=2, max_size=4), min_size=1, max_size=2),
)
def test_tail_gives_the_text_up_to_the_first_stop_string_that_begins_in_it(
    tail: str, texts: list[str], stops: list[str]
) -> None:
    sent, last = read(WatchedTail(tail, 0, stops, includes_stop=False), *texts)
    whole = tail + "".join(texts)
    starts = [n for n in range(len(tail)) for s in stops if whole.startswith(s, n) and n + len(s) > len(tail)]
    if last.stop_reason is None:
        assert sent == whole
        assert not starts
    else:
        assert len(sent) in starts
        assert whole.startswith(sent + str(last.stop_reason))

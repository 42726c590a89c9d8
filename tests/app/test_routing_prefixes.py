"""Mutations tried by hand, each found by a test here: the oldest replica of a prefix kept instead of the latest; the
entries unbounded; the latest entries forgotten first; the shorter of two matches told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.routing_prefixes import MAX_REPLICAS, PrefixBook
from app.routing_prompt import Prompt, read_prompt

SYSTEM = "You are a helpful assistant. " * 20
QUESTION = "What is the capital of France? " * 20


def chat(*contents: str) -> Prompt:
    return read_prompt({"messages": [{"role": "user", "content": content} for content in contents]})


def test_book_matches_the_next_turn_of_a_conversation() -> None:
    book = PrefixBook(1000)
    first = chat(SYSTEM, QUESTION)
    book.note(first, "a")
    book.check_invariants()
    assert book.match(chat(SYSTEM, QUESTION, "Paris.", "And of Spain?")) == {"a": first.num_chars}


def test_book_tells_for_each_replica_the_longest_that_it_has_read() -> None:
    book = PrefixBook(1000)
    first, second = chat(SYSTEM), chat(SYSTEM, QUESTION)
    book.note(second, "b")
    book.note(first, "b")
    book.note(first, "a")
    assert book.match(second) == {"a": first.num_chars, "b": second.num_chars}


def test_book_matches_nothing_that_nobody_has_read() -> None:
    book = PrefixBook(1000)
    book.note(chat(SYSTEM), "a")
    assert book.match(chat(QUESTION)) == {}
    assert book.match(Prompt()) == {}


def test_book_keeps_the_latest_replicas_of_a_prefix() -> None:
    book = PrefixBook(1000)
    names = [f"replica-{i}" for i in range(MAX_REPLICAS + 2)]
    for name in names:
        book.note(chat(SYSTEM), name)
    book.note(chat(SYSTEM), names[2])
    book.check_invariants()
    assert set(book.match(chat(SYSTEM))) == set(names[-MAX_REPLICAS:])


def test_book_forgets_first_what_was_sent_longest_ago() -> None:
    book = PrefixBook(max_entries=4)
    prompts = [chat(str(i)) for i in range(5)]
    for prompt in prompts[:4]:
        book.note(prompt, "a")
    book.note(prompts[0], "a")
    book.note(prompts[4], "a")
    assert [bool(book.match(prompt)) for prompt in prompts] == [True, False, True, True, True]


def test_book_without_entries_matches_nothing() -> None:
    book = PrefixBook(0)
    book.note(chat(SYSTEM), "a")
    book.check_invariants()
    assert (len(book), book.match(chat(SYSTEM))) == (0, {})


@given(st.integers(0, 20), st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=4), st.sampled_from("xyzuvw"))))
def test_book_is_bounded_whatever_is_sent(max_entries: int, sent: list[tuple[list[str], str]]) -> None:
    book = PrefixBook(max_entries)
    for contents, replica_id in sent:
        book.note(chat(*(300 * content for content in contents)), replica_id)
        book.check_invariants()

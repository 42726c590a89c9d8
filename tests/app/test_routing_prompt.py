"""Mutations tried by hand, each found by a test here: the role left out of a mark; marks that depend on what comes
after them; no mark at the end of a message; every place by count marked, and not the doubled ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing_prompt import CHARS_PER_TOKEN_ID, FIRST_CUT_CHARS, MAX_MARKED_CHARS, MAX_MESSAGES, Prompt, read_prompt

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
WORDS = "".join(f"word {i} " for i in range(20_000))


def chat(*contents: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


def places(prompt: Prompt, is_end: bool) -> list[int]:
    return [mark.num_chars for mark in prompt.marks if mark.is_end is is_end]


def common_chars(a: dict[str, Any], b: dict[str, Any]) -> int:
    """Of the longest marked beginning that both have."""
    keys = {mark.key for mark in read_prompt(a).marks}
    return max((mark.num_chars for mark in read_prompt(b).marks if mark.key in keys), default=0)


def test_prompt_is_marked_at_doubled_places_and_at_its_end() -> None:
    prompt = read_prompt({"prompt": WORDS[:3000]})
    assert places(prompt, is_end=False) == [256, 512, 1024, 2048]
    assert places(prompt, is_end=True) == [3000]
    assert prompt.num_chars == 3000


def test_prompt_of_messages_is_marked_at_each_end() -> None:
    ends = places(read_prompt(chat("a" * 10, "b" * 300)), is_end=True)
    assert ends == [len("user\n") + 10, len("user\n") + 10 + len("assistant\n") + 300]


def test_prompts_of_a_conversation_have_all_of_the_earlier_one_in_common() -> None:
    first, second = chat(WORDS[:700]), chat(WORDS[:700], "an answer", "a question")
    assert common_chars(first, second) == read_prompt(first).num_chars


def test_prompts_that_differ_early_have_what_was_marked_before_in_common() -> None:
    first, second = WORDS[:3000], WORDS[:1500] + "!" + WORDS[1501:3000]
    assert common_chars({"prompt": first}, {"prompt": second}) == 1024


def test_prompts_that_differ_in_the_first_letter_have_nothing_in_common() -> None:
    assert common_chars({"prompt": WORDS[:3000]}, {"prompt": "!" + WORDS[1:3000]}) == 0


def test_prompts_of_other_roles_have_nothing_in_common() -> None:
    system = {"messages": [{"role": "system", "content": WORDS[:500]}]}
    assert common_chars(system, chat(WORDS[:500])) == 0


def test_prompt_of_several_parts_is_its_texts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"text": "b"}, 7]
    assert read_prompt(chat(parts)) == read_prompt(chat("a\nb"))


def test_prompt_of_several_is_the_first() -> None:
    assert read_prompt({"prompt": ["a", "b"]}) == read_prompt({"prompt": "a"})
    assert read_prompt({"prompt": [[1, 2], [3]]}) == read_prompt({"prompt": [1, 2]})


def test_prompt_of_token_ids_counts_as_text() -> None:
    ids = list(range(1000))
    prompt = read_prompt({"prompt": ids})
    assert prompt.num_chars == CHARS_PER_TOKEN_ID * 1000
    assert places(prompt, is_end=False) == [256, 512, 1024, 2048]
    assert common_chars({"prompt": ids}, {"prompt": ids[:600] + [7] * 400}) == 2048


@pytest.mark.parametrize("prompt", [WORDS, list(range(MAX_MARKED_CHARS))])
def test_prompt_has_no_marks_beyond_the_last_place(prompt: Any) -> None:
    read = read_prompt({"prompt": prompt})
    assert read.num_chars > MAX_MARKED_CHARS
    assert read.marks[-1].num_chars == MAX_MARKED_CHARS
    assert read.marks[0].num_chars == FIRST_CUT_CHARS


def test_prompt_of_very_many_messages_is_read_in_part() -> None:
    assert len(read_prompt(chat(*["a"] * 3 * MAX_MESSAGES)).marks) < MAX_MESSAGES + 10


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [{}]},
        {"prompt": [1, "a"]},
        {"prompt": [1, [2]]},
        {"messages": "a"},
        {"messages": [None, 7, [], {"role": 7, "content": "a"}, {"role": "user"}]},
    ],
)
def test_prompt_that_is_none_is_empty(body: dict[str, Any]) -> None:
    prompt = read_prompt(body)
    assert all(mark.num_chars == 0 for mark in prompt.marks)


def test_prompts_for_an_adapter_have_nothing_in_common_with_others() -> None:
    """Its KV is its own. The model's names are all the same one."""
    names = ("tiny", "alias")
    read = {m: read_prompt({"model": m, "prompt": WORDS[:600]}, names) for m in (None, "tiny", "alias", "red", "blue")}
    assert read[None] == read["tiny"] == read["alias"]
    keys = [{mark.key for mark in read[model].marks} for model in ("tiny", "red", "blue")]
    assert not keys[0] & keys[1] | keys[1] & keys[2]
    assert read["red"].num_chars == read["tiny"].num_chars


@given(st.fixed_dictionaries({}, optional={"messages": JSON, "prompt": JSON, "model": JSON}))
def test_prompt_of_whatever_a_client_sent_is_read(body: dict[str, Any]) -> None:
    prompt = read_prompt(body)
    chars = [mark.num_chars for mark in prompt.marks]
    assert chars == sorted(chars)


@given(st.lists(st.text(max_size=700), min_size=1, max_size=6), st.text(max_size=700))
def test_marks_depend_on_nothing_that_comes_after_them(contents: list[str], more: str) -> None:
    before, after = read_prompt(chat(*contents)).marks, read_prompt(chat(*contents, more)).marks
    assert after[: len(before)] == before

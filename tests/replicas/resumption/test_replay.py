"""Mutations tried by hand, each found by a test here: another token taken for the same; text that was sent left in; log
probabilities not cut with their tokens; an answer that ends too early taken for the same."""

from __future__ import annotations

import pytest
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from replicas.resumption.delivered_text import DeliveredText
from replicas.resumption.plan import Plan, Sampling
from replicas.resumption.replay import Part, Repetition, replay_outputs, replayed_parts
from slo.messages import Recovery

A, B, C = ({token_id: Logprob(0.0, 1)} for token_id in (7, 8, 9))
DELIVERED = DeliveredText((7, 8, 9), "abcdef", (2, 3, 6), [A, B, C])
PLAIN = Sampling(None, is_greedy=True, is_seeded=False)
HOLDING = Sampling(None, is_greedy=True, is_seeded=False, num_watched_chars=2)
ALL = Plan(Recovery.FROM_TOKENS, 3, 3)


def output(
    token_ids: list[int], text: str, finish_reason: str | None = None, logprobs: bool = False
) -> CompletionOutput:
    of_tokens = [{t: None} for t in token_ids] if logprobs else None
    return CompletionOutput(0, text, token_ids, None, of_tokens, finish_reason=finish_reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "plan", "one_by_one", "parts"),
    [
        (PLAIN, ALL, False, [Part((7, 8, 9), "abcdef", [A, B, C])]),
        (PLAIN, ALL, True, [Part((7,), "ab", [A]), Part((8,), "c", [B]), Part((9,), "def", [C])]),
        (HOLDING, ALL, False, [Part((7, 8, 9), "abcd", [A, B, C])]),
        (HOLDING, ALL, True, [Part((7,), "", [A]), Part((8,), "a", [B]), Part((9,), "bcd", [C])]),
        (PLAIN, Plan(Recovery.FROM_TOKENS, 2, 2), False, [Part((7, 8), "abc", [A, B])]),
        (PLAIN, Plan(Recovery.FROM_TOKENS, 2, 2), True, [Part((7,), "ab", [A]), Part((8,), "c", [B])]),
        (PLAIN, Plan(Recovery.AGAIN, 0, 0), True, []),
    ],
)
def test_replayed_parts_are_what_was_sent(sampling: Sampling, plan: Plan, one_by_one: bool, parts: list[Part]) -> None:
    assert replayed_parts(DELIVERED, sampling, plan, one_by_one) == parts


def test_replay_outputs_tell_the_parts_with_the_original_prompt() -> None:
    first, last = replay_outputs("id", [1, 2], [Part((7,), "ab", [A]), Part((8,), "c", [B])], None)
    assert (first.request_id, first.prompt_token_ids, first.finished, last.finished) == ("id", [1, 2], False, False)
    assert [(o.outputs[0].token_ids, o.outputs[0].text) for o in (first, last)] == [([7], "ab"), ([8], "c")]
    assert (first.outputs[0].logprobs, last.outputs[0].logprobs) == ([A], [B])


def test_replay_outputs_end_with_the_last_part_when_the_answer_had_ended() -> None:
    first, last = replay_outputs("id", [1], [Part((7,), "ab"), Part((8,), "c")], "stop")
    assert (first.finished, last.finished) == (False, True)
    assert (first.outputs[0].finish_reason, last.outputs[0].finish_reason) == (None, "stop")
    assert last.outputs[0].logprobs is None


@pytest.mark.parametrize(("finish_reason", "num_completions"), [(None, 0), ("length", 1)])
def test_replay_outputs_begin_the_answer_also_when_there_is_no_token(
    finish_reason: str | None, num_completions: int
) -> None:
    (only,) = replay_outputs("id", [1], [], finish_reason)
    assert len(only.outputs) == num_completions
    assert only.finished == bool(num_completions)


def test_repetition_takes_out_what_was_delivered_and_leaves_what_is_new() -> None:
    repetition = Repetition((7, 8, 9), 4)
    held, mixed = output([7, 8], "abc", logprobs=True), output([9, 10, 11], "def", logprobs=True)
    assert repetition.cut(held)
    assert (list(held.token_ids), held.text, repetition.is_over) == ([], "", False)
    assert repetition.cut(mixed)
    assert (list(mixed.token_ids), mixed.text, repetition.is_over) == ([10, 11], "ef", True)
    assert [list(position) for position in mixed.logprobs or []] == [[10], [11]]


def test_repetition_is_over_at_once_when_nothing_is_repeated() -> None:
    assert Repetition((), 0).is_over


@pytest.mark.parametrize(
    "outputs",
    [
        [output([7, 5], "ab")],
        [output([7], "ab"), output([5], "c")],
        [output([7, 8], "abc", finish_reason="stop")],
        [output([7, 8, 9], "abc")],
    ],
    ids=["another token", "another token later", "ends before", "less text"],
)
def test_repetition_tells_when_the_answer_is_another_one(outputs: list[CompletionOutput]) -> None:
    repetition = Repetition((7, 8, 9), 4)
    *before, last = [repetition.cut(each) for each in outputs]
    assert all(before)
    assert not last


def test_repetition_may_end_with_the_last_repeated_token() -> None:
    repetition, last = Repetition((7, 8), 2), output([7, 8], "abc", finish_reason="stop")
    assert repetition.cut(last)
    assert (list(last.token_ids), last.text) == ([], "c")

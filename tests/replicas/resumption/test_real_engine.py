"""Answers of a real engine, cut after each of their events and continued: the same answer as undisturbed.

The tiny model in float32. The first replica and the one that goes on are the same process here: what is continued comes
from the resumption alone.

Mutations tried by hand, each found by a test here: penalties, seeds, bad words continued from the tokens; stop strings
begun before the loss missed; tokens counted twice in the usage; min_tokens not counted down; half a character lost; the
role sent twice; the last event sent twice.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from replicas.engine import engine_arguments, engine_environment, start_engine
from replicas.openai import OpenAIFrontend
from replicas.statistics import EngineStatistics
from slo.errors import NotContinued
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Recovery, Resumed
from slo.settings import EngineSettings, SchedulerSettings
from tests.replicas.resumption.answers import call_of, cut, put_together, replies_to, resume

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    # vLLM leaves a ZeroMQ context open; it is collected here, so that it does not fail a later test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHAT, COMPLETION = Endpoint
FROM_TOKENS, AGAIN = Recovery.FROM_TOKENS, Recovery.AGAIN
MAX_MODEL_LEN = 256
NUM_TOKENS = 12
GREEDY = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
SEEDED = {**GREEDY, "temperature": 1.5, "seed": 11}
SAMPLED = {**GREEDY, "temperature": 1.5}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model: Path) -> AsyncIterator[OpenAIFrontend]:
    environment = dict(os.environ)
    settings = EngineSettings(
        max_num_seqs=4, max_model_len=MAX_MODEL_LEN, dtype="float32", kv_cache_bytes=16 * 2**20, block_tokens=32
    )
    arguments = engine_arguments(str(model), ("tiny",), settings, SchedulerSettings(), cpu=True)
    engine, engine_args = start_engine(
        arguments, engine_environment(settings, True, True, os.cpu_count() or 1), EngineStatistics()
    )
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    frontend = await OpenAIFrontend.create(engine, engine_args, parsers)
    yield frontend
    engine.shutdown()
    del frontend._engine, frontend._state, engine
    gc.collect()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="module")
def half_characters(tokenizer: Any) -> dict[str, Any]:
    """Sampling of bytes: characters that take several tokens, and some that never become whole."""
    allowed = [tokenizer.convert_tokens_to_ids(t) for t in [*tokenizer.tokenize("€éa"), "b", "c"]]
    assert None not in allowed
    return {"allowed_token_ids": sorted(set(allowed)), "max_tokens": 30}


CASES: dict[str, tuple[dict[str, Any], Recovery]] = {
    "greedy": (GREEDY, FROM_TOKENS),
    "seeded": (SEEDED, AGAIN),
    "repetition penalty": ({**GREEDY, "repetition_penalty": 1.8}, FROM_TOKENS),
    "presence penalty": ({**GREEDY, "presence_penalty": 2.0}, AGAIN),
    "frequency penalty, seeded": ({**SEEDED, "frequency_penalty": 1.5}, AGAIN),
    "bad words": ({**GREEDY, "bad_words": ["e", "th", "a"]}, AGAIN),
    "logit bias": ({**GREEDY, "logit_bias": {"70": 4, "71": 4}}, FROM_TOKENS),
    "top k, seeded": ({**SEEDED, "top_k": 5, "top_p": 0.9}, AGAIN),
    "grammar": ({**GREEDY, "structured_outputs": {"regex": "[a-f]{4}[0-9]{6}"}, "ignore_eos": False}, AGAIN),
    "tokens shown": ({**GREEDY, "return_token_ids": True}, FROM_TOKENS),
    "several tokens an event": ({**GREEDY, "stream_interval": 4}, FROM_TOKENS),
    "one token": ({**GREEDY, "max_tokens": 1}, FROM_TOKENS),
}


async def check_every_cut(
    frontend: OpenAIFrontend, endpoint: Endpoint, body: dict[str, Any], expected: Recovery | None = None
) -> None:
    """Cut after each event, every third time once more two events later: the client has the same answer."""
    call = call_of(endpoint, body)
    replies = await replies_to(frontend, call)
    undisturbed = put_together([reply.events for reply in replies if isinstance(reply, Chunk)])
    assert undisturbed.num_done == 1, replies
    assert undisturbed.finish_reason is not None
    for num_events in range(1, len(replies)):
        lost = cut(call, replies, num_events)
        in_the_middle = bool(lost.sent.token_ids) and lost.sent.finish_reason is None
        resumed = await resume(frontend, lost, 2 if num_events % 3 == 0 else None)
        assert isinstance(resumed, Resumed), resumed
        if num_events % 3 == 0:
            assert isinstance(await resume(frontend, lost), Resumed)
        assert put_together(lost.events) == undisturbed, f"cut after {num_events} events"
        if expected is not None and in_the_middle:
            assert resumed.recovery is expected


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
@pytest.mark.parametrize("name", CASES)
async def test_answer_is_the_same_wherever_it_is_cut(frontend: OpenAIFrontend, endpoint: Endpoint, name: str) -> None:
    body, recovery = CASES[name]
    await check_every_cut(frontend, endpoint, body, recovery)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_answer_with_characters_of_several_tokens_is_the_same(
    frontend: OpenAIFrontend, endpoint: Endpoint, sampling: dict[str, Any], half_characters: dict[str, Any]
) -> None:
    await check_every_cut(frontend, endpoint, {**sampling, **half_characters})


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("include", [False, True], ids=["left out", "included"])
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
async def test_answer_that_ends_by_a_stop_string_is_the_same(
    frontend: OpenAIFrontend, endpoint: Endpoint, include: bool, sampling: dict[str, Any]
) -> None:
    """The stop string is of several tokens, so that it begins before some cuts and ends after them."""
    whole = await replies_to(frontend, call_of(endpoint, sampling))
    stop = put_together([reply.events for reply in whole if isinstance(reply, Chunk)]).text[-12:-4]
    body = {**sampling, "stop": [stop, "no such text at all"], "include_stop_str_in_output": include}
    replies = await replies_to(frontend, call_of(endpoint, body))
    ended = put_together([reply.events for reply in replies if isinstance(reply, Chunk)])
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)
    await check_every_cut(frontend, endpoint, body)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
async def test_answer_that_ends_by_a_token_keeps_its_least_length(frontend: OpenAIFrontend, endpoint: Endpoint) -> None:
    replies = await replies_to(frontend, call_of(endpoint, GREEDY))
    tokens = [t for reply in replies if isinstance(reply, Chunk) for t in reply.token_ids]
    body = {**GREEDY, "stop_token_ids": tokens[:3] + tokens[8:9], "min_tokens": 8}
    await check_every_cut(frontend, endpoint, body, FROM_TOKENS)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
async def test_answer_shows_each_log_probability_once(frontend: OpenAIFrontend, endpoint: Endpoint) -> None:
    asked = {"logprobs": True, "top_logprobs": 2} if endpoint is CHAT else {"logprobs": 2}
    await check_every_cut(frontend, endpoint, {**GREEDY, **asked}, FROM_TOKENS)
    await check_every_cut(frontend, endpoint, {**SEEDED, **asked}, AGAIN)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
async def test_answer_fills_the_context_as_before_when_no_limit_is_set(
    frontend: OpenAIFrontend, endpoint: Endpoint
) -> None:
    body = {**GREEDY, "prompt": list(range(100, 100 + MAX_MODEL_LEN - 9))} if endpoint is COMPLETION else {**GREEDY}
    if endpoint is CHAT:
        body["messages"] = [{"role": "user", "content": "a" * (MAX_MODEL_LEN - 24)}]
    body["max_tokens"] = None
    await check_every_cut(frontend, endpoint, body, FROM_TOKENS)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION])
async def test_sampled_answer_goes_on_after_what_was_sent(
    frontend: OpenAIFrontend, endpoint: Endpoint, tokenizer: Any
) -> None:
    """Another answer than undisturbed, but one: as long as asked for, and its text is that of its tokens."""
    call = call_of(endpoint, {**SAMPLED, "return_token_ids": True})
    await check_sampled(frontend, call, tokenizer)


@pytest.mark.parametrize("include", [False, True])
async def test_sampled_answer_with_stop_strings_sends_all_that_was_held_back(
    frontend: OpenAIFrontend, tokenizer: Any, include: bool
) -> None:
    stops = {"stop": ["no such text at all", "nor this"], "include_stop_str_in_output": include}
    await check_sampled(frontend, call_of(CHAT, {**SAMPLED, **stops}), tokenizer)


async def check_sampled(frontend: OpenAIFrontend, call: GenerateCall, tokenizer: Any) -> None:
    for num_events in range(2, NUM_TOKENS):
        replies = await replies_to(frontend, call)
        lost = cut(call, replies, num_events)
        before = put_together(list(lost.events))
        resumed = await resume(frontend, lost)
        assert isinstance(resumed, Resumed)
        answer = put_together(lost.events)
        assert answer.text.startswith(before.text)
        assert (answer.finish_reason, answer.num_done, answer.usage["completion_tokens"]) == ("length", 1, NUM_TOKENS)
        assert len(lost.sent.token_ids) == NUM_TOKENS
        assert tokenizer.decode(lost.sent.token_ids, skip_special_tokens=True).startswith(answer.text)


@pytest.mark.parametrize(
    ("endpoint", "body", "reason"),
    [
        (COMPLETION, {**SAMPLED, "n": 2}, "several choices"),
        (CHAT, {**SAMPLED, "n": 2}, "several choices"),
        (COMPLETION, {**GREEDY, "prompt": ["a", "b"]}, "several prompts"),
        (COMPLETION, {**GREEDY, "echo": True}, "echo"),
        (CHAT, {**SAMPLED, "presence_penalty": 1.0}, "a presence penalty"),
        (CHAT, {**SAMPLED, "response_format": {"type": "json_object"}}, "structured output"),
    ],
)
async def test_answer_that_cannot_be_continued_says_why(
    frontend: OpenAIFrontend, endpoint: Endpoint, body: dict[str, Any], reason: str
) -> None:
    call = call_of(endpoint, body)
    replies = await replies_to(frontend, call)
    failure = await resume(frontend, cut(call, replies, 4))
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, NotContinued)
    assert reason in failure.error.message


async def test_answer_is_not_continued_when_a_tool_call_has_begun(frontend: OpenAIFrontend) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    call = call_of(CHAT, {**GREEDY, **tools, "max_tokens": 60})
    replies = await replies_to(frontend, call)
    chunks = [reply for reply in replies if isinstance(reply, Chunk)]
    begun = next(n for n, chunk in enumerate(chunks, start=1) if '"tool_calls":[{' in chunk.events)
    failure = await resume(frontend, cut(call, replies, begun))
    assert isinstance(failure, Failure)
    assert "a tool call had begun" in failure.error.message


async def test_other_tokens_than_those_sent_end_the_answer(frontend: OpenAIFrontend) -> None:
    call = call_of(CHAT, SEEDED)
    lost = cut(call, await replies_to(frontend, call), 6)
    lost.sent.token_ids[2] += 1
    failure = await resume(frontend, lost)
    assert isinstance(failure, Failure)
    assert "another way" in failure.error.message


async def test_whole_answer_is_as_ever(frontend: OpenAIFrontend) -> None:
    (reply,) = await replies_to(frontend, call_of(CHAT, {**GREEDY, "stream": False, "stream_options": None}))
    assert isinstance(reply, Document)

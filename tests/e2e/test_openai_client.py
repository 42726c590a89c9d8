"""The application as OpenAI's own Python client sees it."""

from __future__ import annotations

import json

import openai
import pytest

from tests.e2e.conftest import MODEL

pytestmark = pytest.mark.e2e
MESSAGES = [{"role": "user", "content": "Tell me about trains."}]


@pytest.mark.parametrize("priority", ["P0", "P1", "P2"])
def test_chat_answers_whole_in_each_class(client: openai.OpenAI, priority: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, extra_headers={"X-Priority": priority}
    )
    answer = raw.parse()
    assert raw.headers["x-priority-class"] == priority
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize("priority", ["P0", "P1", "P2"])
def test_chat_streams_the_same_text_in_each_class(client: openai.OpenAI, priority: str) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    headers = {"X-Priority": priority}
    whole = client.chat.completions.create(**options, extra_headers=headers).choices[0].message.content
    chunks = list(client.chat.completions.create(**options, stream=True, extra_headers=headers))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 4  # token by token, not at once


def test_chat_stream_ends_with_usage_when_asked(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == 5


def test_chat_gives_logprobs_choices_and_a_repeatable_seed(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6, "n": 2, "seed": 7, "temperature": 1.0}
    first = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    second = client.chat.completions.create(**options)
    assert [c.message.content for c in first.choices] == [c.message.content for c in second.choices]
    assert len(first.choices) == 2
    assert len(first.choices[0].logprobs.content) == 6
    assert len(first.choices[0].logprobs.content[0].top_logprobs) == 3


def test_chat_stops_at_a_stop_string(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    full = client.chat.completions.create(**options).choices[0].message.content
    stop = full[4:6]
    cut = client.chat.completions.create(**options, stop=[stop]).choices[0]
    assert cut.message.content == full[: full.index(stop)]
    assert cut.finish_reason == "stop"


def test_chat_follows_a_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=20, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert answer.choices[0].message.content in ("yes", "no")


def test_chat_calls_the_named_tool(client: openai.OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    for seed in range(20):  # a random model may fill its answer with blanks, which JSON allows
        answer = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=300,
            seed=seed,
            tools=[{"type": "function", "function": {"name": "decide", "strict": True, "parameters": parameters}}],
            tool_choice={"type": "function", "function": {"name": "decide"}},
        )
        if answer.choices[0].finish_reason != "length":
            break
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "decide"
    assert json.loads(call.function.arguments)["answer"] in ("yes", "no")


@pytest.mark.parametrize("priority", ["realtime", "standard", "batch"])
def test_completion_answers_and_streams_the_same_text(client: openai.OpenAI, priority: str) -> None:
    options = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    headers = {"x_priority": priority}
    whole = client.completions.create(**options, extra_headers=headers).choices[0].text
    chunks = list(client.completions.create(**options, stream=True, extra_headers=headers))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert whole


def test_models_are_listed_and_found_by_each_name(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL, "tiny-alias"]
    assert client.models.retrieve("tiny-alias").id == "tiny-alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_service_tier_decides_the_class(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, service_tier="flex"
    )
    assert raw.headers["x-priority-class"] == "P2"


def test_errors_are_those_of_the_openai_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_headers={"X-Priority": "P9"})
    assert "P0, P1, P2" in wrong.value.message.upper()
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "trains " * 2000}])
    assert "1024" in long.value.message
    with pytest.raises(openai.BadRequestError) as long_stream:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "trains " * 2000}], stream=True
        )
    assert "1024" in long_stream.value.message

"""A streamed answer as a client puts it together, and a lost replica imitated: cut anywhere, and continued."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from app.survive import Sent
from replicas.openai import OpenAIFrontend
from slo.messages import Chunk, Endpoint, Failure, GenerateCall, Reply, Resumed
from slo.priority import PriorityClass


@dataclass
class Answer:
    """What a client knows of one streamed answer in the end."""

    text: str = ""
    reasoning: str = ""
    logprobs: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """Those that the client asked to see (`return_token_ids`)."""
    finish_reason: str | None = None
    stop_reason: Any = None
    usage: dict[str, Any] | None = None
    roles: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    num_created: int = 0
    num_done: int = 0


def put_together(events: list[str]) -> Answer:
    """The answer in `events`, which are vLLM's."""
    answer, created = Answer(), set()
    for text in events:
        for line in text.strip().split("\n\n"):
            told = line.removeprefix("data: ")
            assert answer.num_done == 0, "an event after the end"
            if told == "[DONE]":
                answer.num_done += 1
                continue
            event = json.loads(told)
            answer.ids.add(event["id"])
            created.add(event["created"])
            answer.usage = event.get("usage") or answer.usage
            for choice in event["choices"]:
                _add_choice(answer, choice)
    answer.num_created = len(created)
    return answer


def _add_choice(answer: Answer, choice: dict[str, Any]) -> None:
    assert answer.finish_reason is None, "a choice after its end"
    delta = choice.get("delta") or {}
    if "role" in delta:
        answer.roles.append(delta["role"])
    answer.text += choice.get("text") or delta.get("content") or ""
    answer.reasoning += delta.get("reasoning") or ""
    answer.token_ids += choice.get("token_ids") or []
    told = choice.get("logprobs") or {}
    entries = told.get("content") or list(zip(told.get("tokens", []), told.get("text_offset", []), strict=True))
    answer.logprobs += [entry if isinstance(entry, tuple) else entry["token"] for entry in entries]
    answer.finish_reason = choice.get("finish_reason")
    answer.stop_reason = choice.get("stop_reason")


@dataclass
class Lost:
    """An answer of which the client has the first part only."""

    call: GenerateCall
    events: list[str]
    sent: Sent


def call_of(endpoint: Endpoint, body: dict[str, Any]) -> GenerateCall:
    """A streamed call with usage."""
    prompt = "The harbour master keeps a list"
    asked = {"messages": [{"role": "user", "content": prompt}]} if endpoint is Endpoint.CHAT else {"prompt": prompt}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return GenerateCall(endpoint, {**asked, **streamed, **body}, PriorityClass.P1, "request-1")


async def replies_to(frontend: OpenAIFrontend, call: GenerateCall) -> list[Reply]:
    return [reply async for reply in frontend.generate(call)]


def cut(call: GenerateCall, replies: list[Reply], num_events: int) -> Lost:
    """The replica is lost when `num_events` have been sent."""
    lost = Lost(call, [], Sent())
    _deliver(lost, replies, num_events)
    return lost


async def resume(frontend: OpenAIFrontend, lost: Lost, num_events: int | None = None) -> Resumed | Failure:
    """Goes on with `lost`, as the ingress does, until the next loss or the end. How it went on, or why it did not."""
    call = lost.call
    with_resumption = GenerateCall(call.endpoint, call.body, call.priority, call.request_id, lost.sent.resumption())
    first, *replies = await replies_to(frontend, with_resumption)
    if isinstance(first, Failure):
        return first
    assert isinstance(first, Resumed)
    del lost.sent.token_ids[first.num_kept :]
    _deliver(lost, replies, num_events)
    return next((reply for reply in replies if isinstance(reply, Failure)), first)


def _deliver(lost: Lost, replies: list[Reply], num_events: int | None) -> None:
    chunks = [reply for reply in replies if isinstance(reply, Chunk)]
    for chunk in chunks[:num_events]:
        lost.sent.note(chunk)
        lost.events.append(chunk.events)

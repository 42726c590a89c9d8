"""Questions whose answers are known, asked as streams: greedy, seeded, with a penalty, with a stop string."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.conftest import LIMIT_S

NUM_TOKENS = 700
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 4},
    "penalty": {"temperature": 0, "presence_penalty": 1.5},
    "stop": {"temperature": 0, "stop": ["no such text"]},
}


@dataclass(frozen=True)
class Question:
    route: str
    subject: str
    sampling: str
    priority: str = "P1"

    @property
    def body(self) -> dict[str, Any]:
        prompt = f"The ship {self.subject} carries"
        asked = {"prompt": prompt} if self.route == COMPLETION else {"messages": [{"role": "user", "content": prompt}]}
        limits = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
        return {**asked, **limits, "stream_options": {"include_usage": True}, **SAMPLINGS[self.sampling]}


@dataclass
class Answer:
    """One streamed answer, as its client puts it together."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    roles: int = 0
    ends: list[str] = field(default_factory=list)
    heads: set[tuple[str, int]] = field(default_factory=set)
    """Id and time of each event."""
    num_events: int = 0

    def add(self, told: str) -> None:
        self.num_events += 1
        if told == "[DONE]":
            self.ends.append(told)
            return
        event = json.loads(told)
        if "error" in event:
            self.ends.append(event["error"]["code"])
            return
        self.heads.add((event["id"], event["created"]))
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            self.roles += "role" in delta
            self.text += choice.get("text") or delta.get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    @property
    def known(self) -> tuple[str, str | None, dict[str, Any] | None, int]:
        """What does not differ from one time to the next."""
        return self.text, self.finish_reason, self.usage, self.roles


async def ask(client: httpx.AsyncClient, question: Question, answer: Answer) -> Answer:
    headers = {"X-Priority": question.priority}
    async with client.stream("POST", question.route, json=question.body, headers=headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                answer.add(line.removeprefix("data: "))
    return answer


async def under_way(*answers: Answer) -> None:
    """Returns when tokens of each have come."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if min(answer.num_events for answer in answers) >= 5:
                return
            await asyncio.sleep(0.005)


QUESTIONS = [
    Question(route, subject, sampling)
    for route, subject in ((CHAT, "one"), (COMPLETION, "two"))
    for sampling in SAMPLINGS
]

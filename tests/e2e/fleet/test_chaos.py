"""Two replicas under a mixed load while clients leave and processes are killed: one story, seen from several sides
afterwards. What every client got is compared with what an undisturbed fleet answers.

The order of events is fixed by what has happened, not by time: a replica's process is killed, then, when the fleet is
whole again, an engine core; streams run all the while. `test_autoscale` shrinks a fleet under load.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import psutil
import pytest

from slo import metrics
from slo.status import StatusReport
from tests.e2e.conftest import LIMIT_S, MODEL, SLOTS, alive, wait_until
from tests.e2e.fleet.conftest import NUM_REPLICAS, Fleet, is_whole
from tests.e2e.test_autoscale import until
from tests.e2e.test_faults import ENGINE, REPLICA, holds
from tests.e2e.test_operator import scrape, value

pytestmark = pytest.mark.e2e
SEED = 20261
WORKERS = 24
NUM_STREAMS = 160
"""At least: streams run until the story is told, too."""
NUM_BEFORE_EACH_FAULT = 40
"""Ended streams, so that all classes are under way."""
LENGTHS = (20, 100, 300)
SUBJECTS = ("fruit", "mail", "coal", "timber", "a pilot", "the tug", "letters", "a collier")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Question:
    """What is asked: its answer is known."""

    route: str
    subject: str
    max_tokens: int

    @property
    def body(self) -> dict[str, Any]:
        text = f"What of {self.subject}?"
        asked = {"messages": [{"role": "user", "content": text}]} if self.route == CHAT else {"prompt": text}
        return {
            "model": MODEL,
            **asked,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


QUESTIONS = [Question(route, s, length) for route in (CHAT, COMPLETION) for s in SUBJECTS for length in LENGTHS]


@dataclass
class Answer:
    """One request as its client sees it."""

    request_id: str
    question: Question
    leaves_after: int | None
    """Events with text after which the client leaves; 0: before the first one. None: it stays."""
    status: int | None = None
    texts: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """`[DONE]`, or the code of an error or a refusal."""
    num_completion_tokens: int | None = None
    has_left: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def take(self, event: str) -> None:
        if event == "[DONE]":
            self.ends.append(event)
            return
        told = json.loads(event)
        if "error" in told:
            self.ends.append(told["error"]["code"])
            return
        if told.get("usage") is not None:
            self.num_completion_tokens = told["usage"]["completion_tokens"]
        for choice in told["choices"]:
            text = choice["delta"].get("content") if self.question.route == CHAT else choice["text"]
            if text:
                self.texts.append(text)


@dataclass
class Crowd:
    """Clients that ask one question after the other until they are told to stop."""

    client: httpx.AsyncClient
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    answers: list[Answer] = field(default_factory=list)
    num_ended: int = 0
    is_on: bool = True
    _numbers: Iterator[int] = field(default_factory=count)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Crowd]:
        """They ask inside; at the end waits for what is under way."""
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        try:
            yield self
        finally:
            self.is_on = False
            await asyncio.gather(*workers)

    async def more(self, num: int) -> None:
        """Waits until so many more have ended."""
        enough = self.num_ended + num
        await holds(lambda: self.num_ended >= enough)

    async def _work(self) -> None:
        while self.is_on or len(self.answers) < NUM_STREAMS:
            leaves_after = self.rng.choice([0, 1, 5]) if self.rng.random() < 0.15 else None
            answer = Answer(f"chaos-{next(self._numbers)}", self.rng.choice(QUESTIONS), leaves_after)
            self.answers.append(answer)
            await ask(self.client, answer, self.rng.choice(["P0", "P1", "P1", "P2", "P2", "P2"]), self.rng)
            self.num_ended += 1


async def ask(client: httpx.AsyncClient, answer: Answer, priority: str, rng: random.Random) -> None:
    """Asks, and reads until the end or until the client leaves."""
    headers = {"X-Request-Id": answer.request_id, "X-Priority": priority}
    patience_s = rng.uniform(0.0, 0.3) if answer.leaves_after == 0 else None
    try:
        async with (
            asyncio.timeout(patience_s),
            client.stream("POST", answer.question.route, json=answer.question.body, headers=headers) as response,
        ):
            answer.status = response.status_code
            if response.status_code != 200:
                answer.ends.append(json.loads(await response.aread())["error"]["code"])
                return
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    answer.take(line.removeprefix("data: "))
                if answer.leaves_after and len(answer.texts) >= answer.leaves_after:
                    answer.has_left = not answer.ends
                    return
    except TimeoutError:
        answer.has_left = True


@dataclass
class Story:
    """What was seen."""

    fleet: Fleet
    expected: dict[Question, str]
    """Of an undisturbed fleet."""
    answers: list[Answer]
    killed: list[psutil.Process]
    """And what belonged to them."""
    killed_engine: psutil.Process
    status: StatusReport
    """Afterwards."""

    @property
    def finished(self) -> list[Answer]:
        return [a for a in self.answers if a.ends == ["[DONE]"] and not a.has_left]


@pytest.fixture(scope="module")
def story(fleet: Fleet) -> Story:
    return asyncio.run(_tell(fleet))


async def _tell(fleet: Fleet) -> Story:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S, limits=limits) as client:
        expected = await undisturbed(client)
        async with Crowd(client).asking() as crowd:
            await crowd.more(NUM_BEFORE_EACH_FAULT)
            replica = crowd.rng.choice(fleet.named(REPLICA))
            killed = await asyncio.to_thread(kill, replica, [replica, *replica.children(recursive=True)])
            await until(client, lambda s: s.counts.running != NUM_REPLICAS)
            await until(client, is_whole)
            await crowd.more(NUM_BEFORE_EACH_FAULT)
            engine = crowd.rng.choice(fleet.named(ENGINE))
            parent = engine.parent()
            assert parent is not None
            killed += await asyncio.to_thread(kill, engine, [parent, *parent.children(recursive=True)])
            await until(client, lambda s: s.counts.running != NUM_REPLICAS)
            await until(client, is_whole)
            await crowd.more(NUM_BEFORE_EACH_FAULT)
        status = await until(client, is_at_rest)
    return Story(fleet, expected, crowd.answers, killed, engine, status)


def kill(victim: psutil.Process, with_it: list[psutil.Process]) -> list[psutil.Process]:
    """Kills one process; the others are to end by themselves."""
    victim.kill()
    return with_it


def is_at_rest(status: StatusReport) -> bool:
    loads = [c.num_running + c.num_waiting + c.num_paused + c.num_swapped for c in status.classes]
    return status.is_complete and not any(loads) and all(r.kv_used_ratio == 0 for r in status.replicas)


async def undisturbed(client: httpx.AsyncClient) -> dict[Question, str]:
    answers = [Answer(f"undisturbed-{i}", question, None) for i, question in enumerate(QUESTIONS)]
    slots = NUM_REPLICAS * SLOTS
    for start in range(0, len(answers), slots):
        await asyncio.gather(*(ask(client, a, "P1", random.Random(0)) for a in answers[start : start + slots]))
    assert all(a.ends == ["[DONE]"] for a in answers)
    return {a.question: a.text for a in answers}


def test_there_was_chaos(story: Story) -> None:
    """Else the rest shows nothing."""
    assert len(story.answers) >= NUM_STREAMS
    assert len(story.finished) >= NUM_STREAMS / 2
    assert sum(a.has_left for a in story.answers) >= 10
    assert sum(a.has_left and not a.texts for a in story.answers) >= 1
    assert len(story.killed) >= 4


def test_every_client_that_stayed_got_its_whole_answer(story: Story) -> None:
    ends = Counter(tuple(a.ends) for a in story.answers if not a.has_left)
    assert set(ends) == {("[DONE]",)}, ends


def test_finished_streams_have_every_token_once(story: Story) -> None:
    wrong = [a for a in story.finished if a.text != story.expected[a.question]]
    assert wrong == []
    assert [a for a in story.finished if a.num_completion_tokens != a.question.max_tokens] == []


def test_clients_that_left_had_the_beginning_of_the_answer(story: Story) -> None:
    assert [a for a in story.answers if not story.expected[a.question].startswith(a.text)] == []


def test_every_request_ended_once_at_the_ingress(story: Story) -> None:
    lines = re.findall(
        r"expresslane.ingress request_id=(chaos-\d+) .*outcome=(\w+)", story.fleet.application.log_text()
    )
    num_ended = Counter(request_id for request_id, _ in lines)
    assert set(num_ended.values()) == {1}
    unseen = {a.request_id for a in story.answers} - set(num_ended)
    assert unseen <= {a.request_id for a in story.answers if a.has_left and not a.texts}, "left before they arrived"
    outcomes = dict(lines)
    assert {outcomes[a.request_id] for a in story.finished} == {"completed"}


def test_counts_agree_and_are_at_their_baseline(story: Story) -> None:
    with httpx.Client(base_url=story.fleet.application.url, timeout=LIMIT_S) as http:
        wait_until(lambda: value(scrape(http), metrics.IN_FLIGHT.name) == 0, "nothing is in flight")
        samples = scrape(http)
    assert value(samples, metrics.ARRIVALS.name) == value(samples, metrics.REQUESTS.name)
    assert value(samples, metrics.ENGINE_REQUESTS.name) == 0
    assert value(samples, metrics.KV_BLOCKS_USED.name) == 0
    assert value(samples, metrics.SWAP_HOST_BYTES_USED.name) == 0
    counts = story.status.counts
    assert (counts.target, counts.running, counts.starting, counts.draining) == (NUM_REPLICAS, NUM_REPLICAS, 0, 0)


def test_killed_processes_leave_nothing_and_the_fleet_is_whole(story: Story) -> None:
    wait_until(lambda: not alive(story.killed), "what belonged to the killed ones has ended")
    story.fleet.wait_until_whole()


def test_death_of_the_engine_core_is_told_and_ends_its_replica(story: Story) -> None:
    told = story.fleet.application
    assert told.has_logged(rf"expresslane.replica reason=engine_died .*pids=(\d+,)*{story.killed_engine.pid}\b")
    assert told.has_logged(r"expresslane.replica reason=replica_ends calls=0")

"""A process that is killed or frozen: found, replaced, and no answer lost but those that a killed ingress had begun.

On a deployment of its own: one replica, two ingress processes, an impatient watchdog.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cli.cluster import free_port
from cli.config import config_for
from slo import metrics
from slo.messages import Recovery
from tests.e2e.conftest import (
    LIMIT_S,
    MAX_MODEL_LEN,
    MODEL,
    Application,
    alive,
    running_application,
    tiny_engine,
    wait_until,
)
from tests.e2e.fleet.nodes import Node
from tests.e2e.test_operator import scrape, value
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
SHORT = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
LONG = {"model": MODEL, "max_tokens": MAX_MODEL_LEN - 100, "ignore_eos": True, "temperature": 0, "stream": True}
WHOLE = {**LONG, "prompt": "The harbour", "stream": False}
ENGINE = r"VLLM::EngineCore|\S+ .*multiprocessing\.spawn"
"""A process cannot take its title where vLLM has changed the variable that is the first in its environment."""
REPLICA = "ray::ServeReplica:expresslane:Replica"
INGRESS = "ray::ServeReplica:expresslane:Ingress"
STALL_S = 8
PATIENT = {"queue_timeout_s": 2 * LIMIT_S}
"""At the gate: a request waits there until a replica has come in the place of the killed one."""


def arguments(model: Path) -> dict[str, Any]:
    return {
        **tiny_engine(model),
        "ingress": {"num_replicas": 2},
        "admission": {"p0": PATIENT, "p1": PATIENT, "p2": PATIENT, "max_wait_ratio": 1},
        "faults": {"stall_timeout_s": STALL_S, "replacement_timeout_s": LIMIT_S},
        "autoscale": {"mode": "off", "period_s": 0.5, "window_s": 1.5, "stale_after_s": 5},
    }


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    directory = tmp_path_factory.mktemp("faults")
    config = config_for(arguments(make_tiny_model(directory / MODEL)), free_port())
    with running_application(directory, config) as application:
        yield application


def named(application: Application | Node, name: str) -> list[psutil.Process]:
    """The running processes of the application, or of a node, whose title begins with `name`, a pattern."""
    return [p for p in alive(application.process.children(recursive=True)) if re.match(name, title_of(p))]


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@dataclass
class Stream:
    """A streamed completion as its client sees it."""

    status: int | None = None
    events: list[str] = field(default_factory=list)
    broken: httpx.TransportError | None = None
    """The connection ended before the answer did."""

    async def run(self, client: httpx.AsyncClient, prompt: str, priority: str, **more: Any) -> None:
        try:
            headers = {"X-Priority": priority}
            body = {**LONG, "prompt": prompt, **more}
            async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                self.status = answer.status_code
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
        except httpx.TransportError as error:
            self.broken = error

    @property
    def ends(self) -> list[str]:
        """Every event that ends a stream."""
        return [e for e in self.events if e == "[DONE]" or "error" in json.loads(e)]


async def under_way(client: httpx.AsyncClient, num_streams: int) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """Streams of all classes, when tokens have come."""
    streams = [Stream() for _ in range(num_streams)]
    tasks = [asyncio.create_task(s.run(client, f"Ship number {i} carries", f"P{i % 3}")) for i, s in enumerate(streams)]
    await holds(lambda: sum(bool(s.events) for s in streams) >= num_streams / 2)
    return streams, tasks


async def holds(condition: Callable[[], bool]) -> None:
    """Waits for a condition without blocking the event loop."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def is_ready(application: Application) -> bool:
    return httpx.get(f"{application.url}/readyz", timeout=LIMIT_S).status_code == 200


async def test_frozen_engine_is_found_and_replaced_and_no_stream_breaks(fragile: Application) -> None:
    wait_until(lambda: is_ready(fragile), "ready")
    (replica,), (engine,) = named(fragile, REPLICA), named(fragile, ENGINE)
    lost = [replica, *replica.children(recursive=True)]
    assert engine in lost
    async with httpx.AsyncClient(base_url=fragile.url, timeout=LIMIT_S) as client:
        streams, tasks = await under_way(client, 6)
        engine.suspend()
        await asyncio.gather(*tasks)
    assert [(s.broken, s.ends) for s in streams] == [(None, ["[DONE]"])] * 6
    assert fragile.has_logged(rf"expresslane.replica reason=engine_stalled .*pids=(\d+,)*{engine.pid}\b")
    assert fragile.has_logged(r"expresslane.replica reason=replica_ends calls=0")
    is_back_in_place_of(lost, fragile)


async def test_only_replica_is_killed_and_each_request_gets_what_can_be_given(fragile: Application) -> None:
    """Streams go on; whole answers are asked for again, and are those of an undisturbed engine; a stream of several
    answers at once cannot go on, and says so."""
    wait_until(lambda: is_ready(fragile), "ready")
    (replica,) = named(fragile, REPLICA)
    lost = [replica, *replica.children(recursive=True)]
    async with httpx.AsyncClient(base_url=fragile.url, timeout=LIMIT_S) as client:
        known = (await client.post("/v1/completions", json=WHOLE)).json()
        several = Stream()
        asked = [asyncio.create_task(several.run(client, "x", "P2", n=2, temperature=1))]
        await holds(lambda: bool(several.events))
        streams, tasks = await under_way(client, 6)
        wholes = await whole_answers_asked(fragile, client, beside=1 + len(streams))
        assert not any(task.done() for task in (*asked, *tasks, *wholes)), "ended before the kill"
        replica.kill()
        await asyncio.gather(*asked, *tasks)
        answers = [(await task).json() for task in wholes]
    assert [(s.broken, s.ends) for s in streams] == [(None, ["[DONE]"])] * 6
    assert [answer.get("choices") for answer in answers] == [known["choices"]] * len(answers)
    assert [answer["usage"] for answer in answers] == [known["usage"]] * len(answers)
    (end,) = several.ends
    assert json.loads(end)["error"]["code"] == "replica_lost"
    assert "several choices" in json.loads(end)["error"]["message"]
    with httpx.Client(base_url=fragile.url, timeout=LIMIT_S) as http:
        wait_until(lambda: num_recovered(http, Recovery.RETRIED) > 0, "retries counted")
        assert num_recovered(http, Recovery.FROM_TOKENS) > 0
    is_back_in_place_of(lost, fragile)


async def whole_answers_asked(
    application: Application, client: httpx.AsyncClient, beside: int
) -> list[asyncio.Task[httpx.Response]]:
    """Whole answers that are being made, or wait: they have arrived, beside so many streams."""
    wholes = [asyncio.create_task(client.post("/v1/completions", json=WHOLE)) for _ in range(6)]
    with httpx.Client(base_url=application.url, timeout=LIMIT_S) as http:

        def have_arrived() -> bool:
            return value(scrape(http), metrics.IN_FLIGHT.name) >= beside + len(wholes)

        await asyncio.to_thread(wait_until, have_arrived, "whole answers under way", LIMIT_S)
    return wholes


def is_back_in_place_of(lost: list[psutil.Process], application: Application) -> None:
    wait_until(lambda: not alive(lost), "the replica and all of its engine's processes have ended")
    answer = httpx.post(f"{application.url}/v1/completions", json=SHORT, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    (replica,) = named(application, REPLICA)
    assert replica not in lost


def num_recovered(http: httpx.Client, recovery: Recovery) -> float:
    return value(scrape(http), metrics.RECOVERIES.name, kind=recovery.value)


async def test_killed_ingress_breaks_its_own_streams_alone_and_what_it_had_not_answered_is_asked_of_the_other(
    fragile: Application,
) -> None:
    """A stream that has begun is cut: HAProxy cannot know where to go on. Whole answers, and those who come in that
    moment, notice nothing. The engine does not work on for the dead one."""
    wait_until(lambda: is_ready(fragile) and len(named(fragile, INGRESS)) == 2, "ready")
    victim, _ = named(fragile, INGRESS)
    urgent = {"X-Priority": "P0"}
    async with httpx.AsyncClient(base_url=fragile.url, timeout=LIMIT_S) as client:
        known = (await client.post("/v1/completions", json=WHOLE)).json()["choices"]
        streams, tasks = await under_way(client, 8)
        wholes = await whole_answers_asked(fragile, client, beside=len(streams))
        assert not any(task.done() for task in (*tasks, *wholes)), "ended before the kill"
        victim.kill()
        during = [(await client.post("/v1/completions", json=SHORT, headers=urgent)).status_code for _ in range(40)]
        await asyncio.gather(*tasks)
        answers = [await task for task in wholes]
    assert during == [200] * 40
    assert [(a.status_code, a.json().get("choices")) for a in answers] == [(200, known)] * len(answers)
    cut = [s for s in streams if s.broken is not None and s.events and not s.ends]
    assert [s for s in streams if s not in cut and s.ends != ["[DONE]"]] == []
    assert 0 < len(cut) < len(streams), "both had some"
    wait_until(lambda: len(named(fragile, INGRESS)) == 2, "the ingress is replaced")
    with httpx.Client(base_url=fragile.url, timeout=LIMIT_S) as http:
        wait_until(lambda: value(scrape(http), metrics.ENGINE_REQUESTS.name) == 0, "nobody works for who is dead")

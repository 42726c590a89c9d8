"""A fleet that grows and shrinks by itself, on a deployment of its own: one story, looked at from several sides.

P0's TBT target is far below what any machine can do, so that P0 streams break it for certain, and nothing else does.
Long batch streams run all the time. The controller is killed in the middle of the breach; while the second replica
starts, a redeploy resets Serve's target; then the load ends, and the fleet shrinks while the batch streams run on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.cluster import free_port
from cli.config import config_for
from slo import metrics
from slo.status import AlertState, StatusReport
from tests.e2e.conftest import LIMIT_S, MODEL, Application, alive, deploy, running_application, tiny_engine, wait_until
from tests.e2e.test_operator import scrape, value
from tests.tiny_model import MAX_TOKENS, make_tiny_model

pytestmark = pytest.mark.e2e
LONG_TOKENS = MAX_TOKENS - 100
CONTROLLER = "ray::ServeReplica:expresslane:Controller"


def arguments(model: Path) -> dict[str, Any]:
    engine = tiny_engine(model)
    engine["engine"]["max_model_len"] = MAX_TOKENS
    return {
        **engine,
        "scheduler": {"targets": {"p0": {"ttft_p99_ms": 1e5, "tbt_p99_ms": 0.01}, "p1": {"ttft_p99_ms": 1e5}}},
        "autoscale": {
            "max_replicas": 2,
            "period_s": 1,
            "window_s": 3,
            "stale_after_s": 10,
            "settle_s": 3,
            "scale_in_quiet_s": 3,
            "scale_in_quiet_max_s": 3,
        },
    }


@dataclass
class Load:
    """Streams, one after the other in each of several workers, and how each ended."""

    client: httpx.AsyncClient
    priority: str
    max_tokens: int
    num_whole: int = 0
    broken: list[str] = field(default_factory=list)
    is_on: bool = True

    @asynccontextmanager
    async def running(self, num_workers: int) -> AsyncIterator[Load]:
        """Runs them inside; at the end waits for the streams that are under way."""
        workers = [asyncio.create_task(self._work(i)) for i in range(num_workers)]
        try:
            yield self
        finally:
            self.is_on = False
            await asyncio.gather(*workers)

    async def _work(self, worker: int) -> None:
        number = 0
        while self.is_on:
            number += 1
            text = await self._stream(f"{self.priority} worker {worker}, stream {number}:")
            if "data: [DONE]" in text and '"error"' not in text:
                self.num_whole += 1
            else:
                self.broken.append(text[-500:])

    async def _stream(self, prompt: str) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": self.max_tokens, "ignore_eos": True, "stream": True}
        answer = await self.client.post("/v1/completions", json=body, headers={"X-Priority": self.priority})
        return answer.text


@dataclass
class Story:
    """What was seen."""

    application: Application
    batch: Load
    urgent: Load
    away: httpx.Response
    """What an operator got while the controller was dead."""
    served_while_away: int
    """The status of a request in that time."""
    statuses: dict[str, StatusReport]
    """By chapter."""
    log: list[str]
    """Of the controllers that there were, in order."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("autoscale")
    config = config_for(arguments(make_tiny_model(directory / MODEL)), free_port())
    with running_application(directory, config) as application:
        yield asyncio.run(_tell(application, config))


async def _tell(application: Application, config: dict[str, Any]) -> Story:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=application.url, timeout=LIMIT_S, limits=limits) as client:
        batch, urgent = Load(client, "P2", LONG_TOKENS), Load(client, "P0", 200)
        statuses = {"start": await until(client, lambda s: s.is_complete)}
        async with batch.running(6):
            async with urgent.running(2):
                await logged(application, r"alert=tbt_breach class=P0 state=pending")
                kill_controller(application)
                away = await answer_while_away(client)
                short = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
                served_while_away = (await client.post("/v1/completions", json=short)).status_code
                await logged(application, r"decision from=1 to=2 reason=tbt_breach")
                await until(client, lambda s: s.counts.starting == 1)
                await asyncio.to_thread(redeploy, application, config)
                await logged(application, r"decision from=1 to=2 reason=restored")
                statuses["two"] = await until(client, lambda s: s.counts.running == 2 and s.is_complete)
                await refuse(client)
            await logged(application, r"alert=tbt_breach class=P0 state=cleared")
            statuses["cleared"] = await until(client, lambda s: not firing(s))
            await logged(application, r"decision from=2 to=1 ")
            statuses["one"] = await until(client, lambda s: (s.counts.running, s.counts.draining) == (1, 0))
        statuses["end"] = await until(client, lambda s: s.is_complete and not any(c.num_running for c in s.classes))
    return Story(application, batch, urgent, away, served_while_away, statuses, controllers_log(application))


async def until(client: httpx.AsyncClient, condition: Callable[[StatusReport], bool]) -> StatusReport:
    """The first status for which the condition holds."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.get("/v1/status")
            if answer.status_code == 200:
                status = StatusReport.model_validate_json(answer.content)
                if condition(status):
                    return status
            await asyncio.sleep(0.1)


async def logged(application: Application, pattern: str) -> None:
    if not await asyncio.to_thread(application.has_logged, pattern, LIMIT_S):
        pytest.fail(f"not logged: {pattern}\nbut\n" + "\n".join(controllers_log(application)))


def kill_controller(application: Application) -> None:
    children = alive(application.process.children(recursive=True))
    (process,) = [p for p in children if " ".join(p.cmdline()).startswith(CONTROLLER)]
    process.kill()


async def answer_while_away(client: httpx.AsyncClient) -> httpx.Response:
    """The first answer of an operator's that is no report."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.get("/v1/status")
            if answer.status_code != 200:
                return answer
            await asyncio.sleep(0.05)


def redeploy(application: Application, config: dict[str, Any]) -> None:
    """As an operator does it who changes something small: Serve sets the target back to `num_replicas`."""
    (ours,) = config["applications"]
    changed = {**ours, "deployments": [{"name": "Replica", "health_check_period_s": 3}]}
    deploy(application.dashboard_url, {**config, "applications": [changed]})


async def refuse(client: httpx.AsyncClient) -> None:
    """Requests that are refused, and some whose client leaves, in each class."""
    for priority in ("P0", "P1", "P2"):
        headers = {"X-Priority": priority}
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": LONG_TOKENS, "ignore_eos": True}
        refused = await client.post("/v1/completions", json=body | {"max_tokens": -1}, headers=headers)
        assert refused.status_code == 400
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=body | {"n": 8}, headers=headers, timeout=0.3)


def firing(status: StatusReport) -> list[str]:
    return [a.name for a in status.alerts if a.state is AlertState.FIRING]


def controllers_log(application: Application) -> list[str]:
    """Without level and time, by which it is ordered."""
    lines = re.findall(r"^[A-Z]+ (\S+ \S+) expresslane\.autoscale (.*)$", application.log_text(), re.MULTILINE)
    return [message for _, message in sorted(lines, key=lambda line: line[0])]


def test_log_tells_the_story(story: Story) -> None:
    expected = (
        r"mode=on period_s=1 reason=started",
        r"replicas target=1 running=1 starting=0 draining=0",
        r"alert=tbt_breach class=P0 state=pending value=\S+ threshold=2e-05",
        r"mode=on period_s=1 reason=started",
        r"reason=state_recalled target=1",
        r"alert=tbt_breach class=P0 state=firing value=\S+ threshold=2e-05",
        r"decision from=1 to=2 reason=tbt_breach mode=on detail=",
        r"replicas target=2 running=1 starting=1 draining=0",
        r"decision from=1 to=2 reason=restored mode=on detail=",
        r"replicas target=2 running=2 starting=0 draining=0",
        r"alert=tbt_breach class=P0 state=cleared",
        r"decision from=2 to=1 reason=spare mode=on detail=",
        r"replicas target=1 running=1 starting=0 draining=1",
        r"replicas target=1 running=1 starting=0 draining=0",
    )
    lines = iter(story.log)
    for pattern in expected:
        assert any(re.match(pattern, line) for line in lines), f"{pattern}\nnot in its place in\n" + "\n".join(
            story.log
        )


def test_target_never_falls_during_the_breach(story: Story) -> None:
    """Neither does the kill, nor the redeploy, nor the cold start make the controller ask for less."""
    cleared = max(i for i, line in enumerate(story.log) if "state=cleared" in line)
    decisions = [re.match(r"decision from=\d+ to=(\d+)", line) for line in story.log[:cleared]]
    targets = [int(found[1]) for found in decisions if found]
    assert targets
    assert all(a <= b for a, b in pairwise(targets))


def test_no_stream_breaks_while_the_fleet_grows_and_shrinks(story: Story) -> None:
    """Scale in during long streams: none breaks."""
    assert story.batch.broken == []
    assert story.urgent.broken == []
    assert story.batch.num_whole >= 6
    assert story.urgent.num_whole >= 2


def test_killed_controller_is_told_as_away_while_requests_are_served(story: Story) -> None:
    assert story.away.status_code == 503
    error = story.away.json()["error"]
    assert error["code"] == "controller_away"
    assert set(error) == {"message", "type", "param", "code"}
    assert story.served_while_away == 200


def test_breach_and_decisions_are_in_the_status(story: Story) -> None:
    assert firing(story.statuses["start"]) == []
    assert "tbt_breach" in firing(story.statuses["two"])
    latest = story.statuses["end"].decisions[0]
    assert (latest.from_replicas, latest.to_replicas) == (2, 1)
    assert {d.reason for d in story.statuses["end"].decisions} >= {"tbt_breach", "restored", "spare"}
    cleared = [a for a in story.statuses["cleared"].alerts if a.state is AlertState.CLEARED]
    assert ("tbt_breach", "P0") in [(a.name, a.priority_class) for a in cleared]


def test_counts_return_to_zero_after_refusals_and_a_drain_and_replicas_fall(story: Story) -> None:
    """A count that leaks keeps a fleet large for ever."""
    counts = story.statuses["end"].counts
    assert (counts.target, counts.running, counts.draining) == (1, 1, 0)
    with httpx.Client(base_url=story.application.url, timeout=LIMIT_S) as http:
        wait_until(lambda: value(scrape(http), metrics.ENGINE_REQUESTS.name) == 0, "the engine has nothing left")
        samples = scrape(http)
    assert value(samples, metrics.IN_FLIGHT.name) == 0
    assert value(samples, metrics.REQUESTS.name, outcome="rejected") >= 3
    assert value(samples, metrics.REQUESTS.name, outcome="cancelled") >= 3


def test_totals_are_of_the_whole_fleet_and_outlive_its_replicas(story: Story) -> None:
    with httpx.Client(base_url=story.application.url, timeout=LIMIT_S) as http:
        samples = scrape(http)
    completed = value(samples, metrics.REQUESTS.name, priority_class="P2", outcome="completed")
    assert 0 < completed <= story.batch.num_whole
    assert value(samples, metrics.STEP_TOKENS.name) > 0
    assert value(samples, metrics.SCALING_DECISIONS.name, reason="tbt_breach") == 1
    assert value(samples, metrics.REPLICAS.name, state="running") == 1

"""A worker node is powered off while its replica answers: its clients see one answer, the one that an undisturbed fleet
gives. The nodes are processes of this machine; Serve, HAProxy and the engines are real.

A node that is lost with an ingress on it is both this and what `test_faults` has. The first module of its folder: no
replica may have moved before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from slo import metrics
from slo.messages import Recovery
from slo.status import StatusReport
from tests.e2e.conftest import LIMIT_S
from tests.e2e.fleet.answers import QUESTIONS, Answer, ask, under_way
from tests.e2e.fleet.conftest import NUM_REPLICAS, Fleet, is_whole
from tests.e2e.test_autoscale import Load, until
from tests.e2e.test_faults import INGRESS, REPLICA
from tests.e2e.test_operator import scrape, value

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def watched(client: httpx.AsyncClient) -> AsyncIterator[list[StatusReport]]:
    """Every status that there is inside."""
    seen: list[StatusReport] = []

    async def watch() -> None:
        while True:
            answer = await client.get("/v1/status")
            if answer.status_code == 200:
                seen.append(StatusReport.model_validate_json(answer.content))
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()


async def test_machine_that_is_lost_loses_no_answer_and_its_replica_comes_back_on_the_other(fleet: Fleet) -> None:
    assert fleet.counted(REPLICA) == [0, 1, 1], "spread, and none on the head"
    assert fleet.counted(INGRESS) == [1, 0, 0]
    _, lost, _ = fleet.cluster.nodes
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as client:
        undisturbed = await asyncio.gather(*(ask(client, question, Answer()) for question in QUESTIONS))
        answers = [Answer() for _ in QUESTIONS]
        short = Load(client, "P0", 8)
        streams = [asyncio.create_task(ask(client, q, a)) for q, a in zip(QUESTIONS, answers, strict=True)]
        await under_way(*answers)
        async with watched(client) as statuses, short.running(2):
            assert all(answer.finish_reason is None for answer in answers), "ended before the fault"
            await asyncio.to_thread(fleet.cluster.power_off, lost)
            await asyncio.gather(*streams)
            await until(client, lambda s: s.counts.running != NUM_REPLICAS)
            await until(client, is_whole)
    for question, answer, known in zip(QUESTIONS, answers, undisturbed, strict=True):
        assert known.ends == answer.ends == ["[DONE]"], question
        assert len(answer.heads) == 1, question
        assert answer.known == known.known, question
    assert short.broken == []
    assert short.num_whole > 0
    assert fleet.counted(REPLICA) == [0, NUM_REPLICAS]
    assert {status.counts.target for status in statuses} <= {NUM_REPLICAS, None}
    assert num_recovered(fleet, Recovery.FROM_TOKENS, Recovery.AGAIN) > 0
    assert num_recovered(fleet, Recovery.NOT_POSSIBLE) == 0
    assert fleet.application.has_logged(
        r"expresslane.ingress request_id=\S+ attempt=1 tokens_kept=[1-9]\d* goes_on=True"
    )


def num_recovered(fleet: Fleet, *recoveries: Recovery) -> float:
    with httpx.Client(base_url=fleet.application.url, timeout=LIMIT_S) as http:
        samples = scrape(http)
    return sum(value(samples, metrics.RECOVERIES.name, kind=recovery.value) for recovery in recoveries)

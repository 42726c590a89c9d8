"""Where requests go in a fleet of two, read from the router's log.

The gate lets P2 have half of what both replicas take, so that P0 finds room.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import LIMIT_S, MAX_MODEL_LEN, MODEL, SLOTS
from tests.e2e.fleet.conftest import MAX_ONGOING, NUM_REPLICAS, Fleet

pytestmark = pytest.mark.e2e
LONG = MAX_MODEL_LEN - 100
ROUTED = re.compile(r"expresslane\.router request_id=(\S+) class=(\S+) replica=(\S+) reason=(\S+)")


def routed(fleet: Fleet, prefix: str) -> dict[str, tuple[str, str]]:
    """Replica and reason of each request whose id begins with `prefix`, in the order in which they were given out."""
    found = (match.groups() for match in ROUTED.finditer(fleet.application.log_text()))
    return {request_id: (replica, reason) for request_id, _, replica, reason in found if request_id.startswith(prefix)}


class Client:
    """Sends requests of a class under an id."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def complete(self, request_id: str, priority: str, max_tokens: int) -> None:
        body = {"prompt": f"Request {request_id}", "max_tokens": max_tokens}
        await self._post("/v1/completions", request_id, priority, body)

    async def chat(self, request_id: str, messages: list[dict[str, str]]) -> str:
        answer = await self._post("/v1/chat/completions", request_id, "P1", {"messages": messages, "max_tokens": 16})
        text: str = answer["choices"][0]["message"]["content"]
        return text

    async def _post(self, path: str, request_id: str, priority: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"X-Request-Id": request_id, "X-Priority": priority}
        body = {"model": MODEL, "ignore_eos": True, **body}
        answer = await self._client.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document


async def until_routed(fleet: Fleet, prefix: str, num: int) -> None:
    """Waits until so many have been given out."""
    async with asyncio.timeout(LIMIT_S):
        while len(routed(fleet, prefix)) < num:  # noqa: ASYNC110  # it is told by the log alone
            await asyncio.sleep(0.1)


async def test_batch_work_is_spread_and_urgent_requests_go_where_a_slot_is_free(fleet: Fleet) -> None:
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as http:
        client = Client(http)
        batch = [asyncio.create_task(client.complete(f"spread-{i}", "P2", LONG)) for i in range(2 * SLOTS - 1)]
        await until_routed(fleet, "spread", len(batch))
        await client.complete("urgent-free", "P0", 1)
        await asyncio.gather(*batch)
    batch_at = Counter(replica for replica, _ in routed(fleet, "spread").values())
    (urgent_at, reason) = routed(fleet, "urgent-free")["urgent-free"]
    assert sorted(batch_at.values()) == [SLOTS - 1, SLOTS]
    assert (batch_at[urgent_at], reason) == (SLOTS - 1, "free_slot")


async def test_urgent_requests_go_where_batch_work_yields_when_no_slot_is_free(fleet: Fleet) -> None:
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as http:
        client = Client(http)
        batch = [asyncio.create_task(client.complete(f"full-{i}", "P2", LONG)) for i in range(4 * SLOTS)]
        await until_routed(fleet, "full", len(batch))
        await asyncio.gather(*(client.complete(f"urgent-yield-{i}", "P0", 4) for i in range(2)))
        assert sum(task.done() for task in batch) < SLOTS, "an urgent request waited for batch work to end"
        await asyncio.gather(*batch)
    urgent = routed(fleet, "urgent-yield")
    assert {reason for _, reason in urgent.values()} == {"can_yield"}
    assert len({replica for replica, _ in urgent.values()}) == NUM_REPLICAS


async def test_conversations_stay_where_their_prefix_lies(fleet: Fleet) -> None:
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as http:
        client = Client(http)
        for talk in range(4):
            messages = [{"role": "user", "content": f"Conversation {talk}: tell me more about it. " * 10}]
            for turn in range(3):
                answer = await client.chat(f"talk-{talk}-{turn}", messages)
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
    for talk in range(4):
        turns = list(routed(fleet, f"talk-{talk}").values())
        assert len({replica for replica, _ in turns}) == 1, turns
        assert [reason for _, reason in turns[1:]] == ["prefix", "prefix"]


async def test_ray_55473_urgent_request_leaves_the_gateway_before_batch_work_that_waits_in_it(
    fleet: Fleet,
) -> None:
    num_full, num_waiting = NUM_REPLICAS * MAX_ONGOING // 2, 20
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as http:
        client = Client(http)
        full = [asyncio.create_task(client.complete(f"jam-a-{i}", "P2", LONG)) for i in range(num_full)]
        await until_routed(fleet, "jam-a", num_full)
        waiting = [asyncio.create_task(client.complete(f"jam-b-{i}", "P2", 8)) for i in range(num_waiting)]
        await client.complete("jam-urgent", "P0", 4)
        assert sum(task.done() for task in waiting) < num_waiting / 2
        await asyncio.gather(*full, *waiting)
    order = list(routed(fleet, "jam"))
    assert order.index("jam-urgent") <= num_full + num_waiting / 2

"""The deployment is updated while streams of every class run: none breaks, and the new settings are in force."""

from __future__ import annotations

import asyncio
import copy

import httpx
import pytest

from tests.e2e.conftest import LIMIT_S, MODEL, SLOTS, alive
from tests.e2e.fleet.conftest import NUM_REPLICAS, Fleet, is_whole
from tests.e2e.test_autoscale import CONTROLLER, Load, until
from tests.e2e.test_faults import INGRESS, REPLICA

pytestmark = pytest.mark.e2e


async def test_update_under_load_breaks_no_stream_and_the_target_is_put_back(fleet: Fleet) -> None:
    """A fleet that has grown to two, and a changed config that starts with one: Serve's target falls, and every process
    is replaced."""
    changed = copy.deepcopy(fleet.config)
    settings = changed["applications"][0]["args"]
    settings["replicas"]["num_replicas"] = 1
    settings["autoscale"] |= {"min_replicas": 1, "max_replicas": NUM_REPLICAS}
    settings["engine"]["max_num_seqs"] = SLOTS + 2
    settings["model"]["names"] = [MODEL, "renamed"]
    renamed = {"model": "renamed", "prompt": "Hello", "max_tokens": 2}
    replaced = [process for name in (CONTROLLER, INGRESS, REPLICA) for process in fleet.named(name)]
    async with httpx.AsyncClient(base_url=fleet.application.url, timeout=LIMIT_S) as client:
        assert (await client.post("/v1/completions", json=renamed)).status_code == 404
        loads = [Load(client, "P0", 8), Load(client, "P1", 100), Load(client, "P2", 700)]
        async with loads[0].running(2), loads[1].running(2), loads[2].running(4):
            await asyncio.to_thread(fleet.deploy, changed)
            await until(client, lambda s: is_whole(s) and {r.max_num_seqs for r in s.replicas} == {SLOTS + 2})
            await until(client, lambda s: s.counts.target == NUM_REPLICAS and not alive(replaced))
            answers = [await client.post("/v1/completions", json=renamed) for _ in range(8)]
    assert {load.priority: load.broken for load in loads} == {"P0": [], "P1": [], "P2": []}
    assert min(load.num_whole for load in loads) >= 2
    assert {answer.status_code for answer in answers} == {200}
    assert fleet.application.has_logged(r"expresslane.autoscale decision from=1 to=2 reason=restored")

"""Who is swapped, and who only queues: the plan's side of KV swap.

Mutations tried, each of which fails a test here: swapped blocks counted as free at once; a swapped victim's shared
blocks counted as freed; victims taken although their moves are over the limit; only this step's moves counted; a kept
block that the asker shares not counted as needed once it is released; a loading request's slot given away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replicas.kv_swap.cost import Exit
from replicas.kv_swap.moves import Tier
from replicas.scheduler.policy import plan_step
from replicas.scheduler.views import Asker, Holder, Room, StepPlan
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings
from tests.replicas.scheduler.test_exits import TERMS

P0, P1, P2 = PriorityClass
ROOM = Room(
    slots=2,
    blocks=0,
    freeing_blocks=0,
    defers_frees=False,
    tokens=500,
    prefill_tokens=dict.fromkeys(PriorityClass, 0),
    num_running=4,
    watermark_blocks=0,
    swap=TERMS,
)
HOLDERS = [Holder(f"batch-{i}", P2, float(i), 160 + i, can_swap=True) for i in range(4)]
OWN: Mapping[str, Mapping[int, int]] = {f"batch-{i}": {10 * i + j: 1 for j in range(10)} for i in range(4)}
SHARED: Mapping[str, Mapping[int, int]] = {
    f"batch-{i}": {**dict.fromkeys(range(100, 104), 4), **{10 * i + j: 1 for j in range(6)}} for i in range(4)
}


def plan(askers: list[Asker], room: Room = ROOM, blocks=OWN, holders=HOLDERS) -> StepPlan:
    return plan_step(askers, room, lambda: holders, lambda i: blocks[i], PreemptionSettings())


def asker(need_blocks: int, name: str = "urgent", priority: PriorityClass = P0, **more) -> Asker:
    return Asker(name, priority, need_blocks, need_tokens=10, **more)


def test_plan_swaps_victims_and_lets_the_asker_wait_for_their_blocks() -> None:
    found = plan([asker(10)])
    assert found.yielding.swap == ("batch-0",)
    assert found.yielding.exits["batch-0"].tier is Tier.MEMORY
    assert (found.yielding.recompute, found.joins) == ((), ())
    assert found.ahead == {"urgent"}


def test_plan_takes_nobody_while_enough_blocks_are_on_their_way() -> None:
    assert plan([asker(10)], replace(ROOM, freeing_blocks=10)).yielding.victims == ()


def test_plan_counts_the_moves_of_all_victims_of_an_asker_also_of_later_steps() -> None:
    terms = replace(TERMS, free_blocks={Tier.MEMORY: 100}, max_move_ms=29)
    found = plan([asker(30)], replace(ROOM, swap=terms))
    assert found.refused == ("urgent",)
    assert found.yielding.victims == ()
    found = plan([asker(30)], replace(ROOM, swap=replace(terms, max_move_ms=30)))
    assert len(found.yielding.swap) == 2, "at most two victims a step"
    assert found.refused == ()


def test_plan_recomputes_those_for_which_there_is_no_room() -> None:
    found = plan([asker(20)], replace(ROOM, swap=replace(TERMS, free_blocks={Tier.MEMORY: 10})))
    assert len(found.yielding.swap) == len(found.yielding.recompute) == 1
    assert found.yielding.exits[found.yielding.recompute[0]].exit is Exit.RECOMPUTE


def test_plan_counts_no_shared_block_of_a_swapped_victim_as_freed() -> None:
    found = plan([asker(11)], blocks=SHARED)
    assert len(found.yielding.swap) == 2, "six blocks are its own, four it keeps"


def test_plan_computes_victims_again_when_only_the_blocks_that_they_share_are_missing() -> None:
    found = plan([asker(28)], blocks=SHARED)
    assert found.yielding.swap == ()
    assert len(found.yielding.recompute) == 2


def test_plan_releases_kept_blocks_only_when_nothing_else_makes_room() -> None:
    room = replace(ROOM, kept={500: 1, 501: 1}, kept_alone_blocks=2)
    assert not plan([asker(40)], replace(room, swap=None)).releases_kept
    found = plan([asker(42)], replace(room, swap=replace(TERMS, free_blocks={Tier.MEMORY: 99})))
    assert found.releases_kept
    assert len(found.yielding.swap) == 2


def test_plan_needs_kept_blocks_that_the_asker_shares_once_they_are_released() -> None:
    room = replace(ROOM, kept={500: 1, 501: 1}, kept_alone_blocks=2)
    assert plan([asker(42, shared_blocks={500: 1})], room).yielding.victims == ()


def test_plan_keeps_a_slot_for_a_request_that_is_being_loaded() -> None:
    room = replace(ROOM, slots=1, blocks=100)
    loading = Asker("loading", P0, 0, 0, is_loading=True)
    found = plan([loading, asker(10, priority=P1)], room)
    assert found.yielding.pause == ("batch-0",), "another slot has to be made"
    found = plan([asker(10), replace(loading, priority=P1)], room)
    assert (found.yielding.victims, [a.request_id for a in found.joins]) == ((), ["urgent"])


def test_plan_reclaims_a_paused_holder_by_swapping_it() -> None:
    paused = [replace(HOLDERS[0], is_paused=True), *HOLDERS[1:]]
    found = plan([asker(10)], holders=paused)
    assert found.yielding.reclaim == ("batch-0",)
    assert found.yielding.exits["batch-0"].exit is Exit.SWAP

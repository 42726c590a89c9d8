"""Who yields, as tables."""

from __future__ import annotations

from collections import Counter

import pytest

from replicas.scheduler.victims import FreedBlocks, choose_for_blocks, choose_for_slot, choose_reclaimed
from replicas.scheduler.views import Asker, Holder, Room
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def holder(
    request_id: str,
    priority: PriorityClass = P2,
    tokens: int = 100,
    arrival_s: float = 0.0,
    paused: bool = False,
    **rest,
) -> Holder:
    return Holder(request_id, priority, arrival_s, tokens, is_paused=paused, **rest)


def asker(need_blocks: int = 0, priority: PriorityClass = P0, shared: dict[int, int] | None = None) -> Asker:
    return Asker("asker", priority, need_blocks, need_tokens=16, shared_blocks=shared or {})


def room(blocks: int = 0, num_running: int = 4, watermark: int = 0, freeing: int = 0) -> Room:
    return Room(
        slots=0,
        blocks=blocks,
        freeing_blocks=freeing,
        defers_frees=False,
        tokens=512,
        prefill_tokens={},
        num_running=num_running,
        watermark_blocks=watermark,
    )


def own_blocks(**sizes: int):
    """Each request holds that many blocks, which nobody shares."""
    return lambda request_id: {hash((request_id, i)): 1 for i in range(sizes[request_id])}


def chosen_ids(holders, need, blocks_of, free=0, **rest) -> list[str] | None:
    chosen = choose_for_blocks(holders, asker(need, **rest), room(free), FreedBlocks(blocks_of))
    return None if chosen is None else [h.request_id for h in chosen]


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        ([holder("a", P0)], None),
        ([holder("a", P1), holder("b", P2)], "b"),
        ([holder("a", tokens=50), holder("b", tokens=40)], "b"),
        ([holder("a", arrival_s=1.0), holder("b", arrival_s=2.0)], "b"),
        ([holder("a", P1, tokens=1), holder("b", P2, tokens=1000)], "b"),
        ([holder("a", paused=True), holder("b", tokens=1000)], "b"),
        ([holder("a", can_yield=False), holder("b", P1)], "b"),
        ([], None),
    ],
)
def test_choose_for_slot_takes_the_least_urgent_then_the_least_kv_then_the_newest(holders, expected) -> None:
    chosen = choose_for_slot(holders, asker())
    assert (chosen.request_id if chosen else None) == expected


@pytest.mark.parametrize("priority", list(PriorityClass))
def test_choose_for_slot_never_takes_an_equal(priority) -> None:
    assert choose_for_slot([holder("a", priority)], asker(priority=priority)) is None


def test_choose_for_blocks_takes_nobody_when_there_is_room() -> None:
    assert chosen_ids([holder("a")], 3, own_blocks(a=9), free=3) == []


def test_choose_for_blocks_takes_nobody_when_all_would_not_be_enough() -> None:
    assert chosen_ids([holder("a"), holder("b")], 20, own_blocks(a=9, b=9)) is None


def test_choose_for_blocks_never_takes_an_equal() -> None:
    assert chosen_ids([holder("a", P1), holder("b", P0)], 1, own_blocks(a=9, b=9), priority=P1) is None


def test_choose_for_blocks_takes_paused_ones_first_within_a_class() -> None:
    holders = [holder("running", tokens=10), holder("paused", tokens=90, paused=True)]
    assert chosen_ids(holders, 2, own_blocks(running=2, paused=9)) == ["paused"]


def test_choose_for_blocks_takes_a_lesser_running_one_before_a_paused_one() -> None:
    holders = [holder("running", P2), holder("paused", P1, paused=True)]
    assert chosen_ids(holders, 2, own_blocks(running=2, paused=9)) == ["running"]


def test_choose_for_blocks_spares_those_made_unnecessary_by_the_last() -> None:
    holders = [holder("a", tokens=1), holder("b", tokens=2), holder("c", tokens=300)]
    assert chosen_ids(holders, 20, own_blocks(a=1, b=1, c=20)) == ["c"]


def test_choose_for_blocks_spares_nobody_for_a_more_urgent_one() -> None:
    holders = [holder("batch", P2, tokens=1), holder("standard", P1, tokens=300)]
    assert chosen_ids(holders, 20, own_blocks(batch=1, standard=20)) == ["batch", "standard"]


def test_choose_for_blocks_counts_a_shared_block_once_all_its_holders_yield() -> None:
    blocks = {"a": {1: 2, 2: 1}, "b": {1: 2, 3: 1}}
    holders = [holder("a"), holder("b", tokens=200)]
    assert chosen_ids(holders, 2, blocks.__getitem__) == ["a", "b"]
    assert chosen_ids(holders, 3, blocks.__getitem__) == ["a", "b"]
    assert chosen_ids(holders, 4, blocks.__getitem__) is None


def test_choose_for_blocks_does_not_count_what_the_asker_shares() -> None:
    blocks = {"a": {1: 1, 2: 1, 3: 1}}
    assert chosen_ids([holder("a")], 3, blocks.__getitem__) == ["a"]
    chosen = choose_for_blocks(
        [holder("a")], asker(3, shared={1: 1}), room(), FreedBlocks(blocks.__getitem__, kept={1})
    )
    assert chosen is None


def test_choose_for_blocks_counts_the_growth_that_a_victim_no_longer_needs() -> None:
    assert chosen_ids([holder("a", growth_blocks=1)], 3, own_blocks(a=3), free=-1) == ["a"]


def test_choose_for_blocks_keeps_the_watermark_only_while_somebody_runs() -> None:
    kept = choose_for_blocks([holder("a")], asker(8), room(watermark=2, num_running=2), FreedBlocks(own_blocks(a=9)))
    alone = choose_for_blocks([holder("a")], asker(8), room(watermark=2, num_running=1), FreedBlocks(own_blocks(a=9)))
    assert kept is None
    assert [h.request_id for h in alone] == ["a"]


def test_choose_for_blocks_waits_for_blocks_that_are_being_freed() -> None:
    assert choose_for_blocks([holder("a")], asker(3), room(freeing=3), FreedBlocks(own_blocks(a=9))) == ()


def test_freed_blocks_undo_what_is_dropped() -> None:
    blocks = {"a": {1: 2, 2: 1}, "b": {1: 2, 3: 1}}
    freed = FreedBlocks(blocks.__getitem__)
    for h in (holder("a", growth_blocks=1), holder("b")):
        freed.add(h)
    assert freed.count == 4
    freed.drop(holder("a", growth_blocks=1))
    assert freed.count == 1
    assert +freed.given_up == Counter({1: 1, 3: 1})


@pytest.mark.parametrize(
    ("holders", "short", "expected"),
    [
        ([holder("run", P0), holder("a", P2, paused=True), holder("b", P1, paused=True)], 1, ["a"]),
        ([holder("run", P0), holder("a", P2, paused=True), holder("b", P1, paused=True)], 5, ["a", "b"]),
        ([holder("run", P0), holder("a", P2, paused=True)], 99, ["a"]),
        ([holder("run", P2), holder("a", P1, paused=True)], 1, []),
        ([holder("run", P1), holder("a", P1, paused=True)], 1, ["a"]),
        ([holder("a", P1, paused=True), holder("b", P1, tokens=50, paused=True)], 1, ["b"]),
        ([holder("run", P0), holder("a", P2, paused=True)], 0, []),
    ],
)
def test_choose_reclaimed_takes_the_least_urgent_paused_ones_that_no_running_one_is_below(
    holders, short, expected
) -> None:
    freed = FreedBlocks(own_blocks(run=4, a=4, b=4))
    assert [h.request_id for h in choose_reclaimed(holders, short, freed)] == expected

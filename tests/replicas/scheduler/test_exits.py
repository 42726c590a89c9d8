"""Several victims share what swap can take in a step.

Mutations tried, each of which fails a test here: the room that earlier victims take not added up; their copies' time
not added up; copies in flight left out; a choice counted before it is taken.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicas.kv_swap.cost import Exit, ExitReason
from replicas.kv_swap.moves import Direction, Tier
from replicas.scheduler.exits import ExitPlan, Leaving, SwapTerms


def one_ms_a_block(num_blocks: int, _direction: Direction, tier: Tier) -> float:
    return num_blocks * (1.0 if tier is Tier.MEMORY else 2.0)


TERMS = SwapTerms(
    free_blocks={Tier.MEMORY: 30},
    leaving_blocks={},
    estimate_ms=one_ms_a_block,
    max_move_ms=50,
    over_limit="queue",
    prefill_tokens_per_s=None,
)


def leaving(*num_blocks: int) -> list[Leaving]:
    return [Leaving(f"v{i}", n, 16 * n) for i, n in enumerate(num_blocks)]


@pytest.mark.parametrize(
    ("changes", "num_blocks", "expected"),
    [
        ({}, (20,), ["fits"]),
        ({}, (20, 10), ["fits", "fits"]),
        ({}, (20, 11), ["fits", "no_room"]),
        ({}, (0, 5), ["nothing_to_move", "fits"]),
        ({"free_blocks": {Tier.MEMORY: 20, Tier.DIRECTORY: 90}}, (20, 5), ["fits", "fits"]),
        ({"free_blocks": {Tier.MEMORY: 20, Tier.DIRECTORY: 4}}, (20, 5), ["fits", "no_room"]),
        ({"max_move_ms": 30}, (20, 10), ["fits", "fits"]),
        ({"max_move_ms": 29}, (20, 10), None),
        ({"max_move_ms": 29, "over_limit": "recompute"}, (20, 10), ["fits", "over_limit"]),
        ({"leaving_blocks": {Tier.MEMORY: 40}}, (10,), ["fits"]),
        ({"leaving_blocks": {Tier.MEMORY: 41}}, (10,), None),
        ({"prefill_tokens_per_s": 16_000}, (10,), ["recompute_is_cheaper"]),
        ({"prefill_tokens_per_s": 1_000}, (10,), ["fits"]),
    ],
)
def test_exits_of_victims_that_go_together(changes: dict, num_blocks: tuple[int, ...], expected) -> None:
    choices = ExitPlan(replace(TERMS, **changes)).choose(leaving(*num_blocks), can_refuse=True)
    found = None if choices is None else [choice.reason for choice in choices.values()]
    assert found == expected


def test_exits_are_never_refused_when_the_victim_must_go() -> None:
    choices = ExitPlan(replace(TERMS, max_move_ms=5)).choose(leaving(10), can_refuse=False)
    assert choices is not None
    assert choices["v0"].exit is Exit.RECOMPUTE
    assert choices["v0"].reason is ExitReason.OVER_LIMIT


def test_exits_count_only_what_is_taken() -> None:
    plan = ExitPlan(TERMS)
    (victim,) = leaving(20)
    for _ in range(2):
        choices = plan.choose([victim], can_refuse=True)
        assert choices is not None
        assert choices["v0"].exit is Exit.SWAP
    plan.take(victim, choices["v0"])
    after = plan.choose(leaving(20), can_refuse=True)
    assert after is not None
    assert after["v0"].reason is ExitReason.NO_ROOM


def test_exits_in_the_directory_come_behind_memory() -> None:
    plan = ExitPlan(replace(TERMS, free_blocks={Tier.MEMORY: 20, Tier.DIRECTORY: 20}))
    choices = plan.choose(leaving(20, 10), can_refuse=True)
    assert choices is not None
    assert [choice.tier for choice in choices.values()] == [Tier.MEMORY, Tier.DIRECTORY]

"""What a move costs, and the decision.

Mutations tried, each failing here: no weight by size; no bound on an outlier; no forgetting with time; no bound on what
is remembered; the two directions mixed up; the limit after the room; the limit compared with out and in together;
`>=` for the limit; cheaper recompute ignored, or for memory only; a directory slower than the limit taken; refusing
where refusing is not possible.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.kv_swap.cost import (
    FULL_WEIGHT_MS,
    HALF_LIFE_S,
    MAX_WEIGHT,
    OUTLIER_RATIO,
    Exit,
    ExitChoice,
    ExitReason,
    MoveCost,
    TierView,
    VictimView,
    decide_exit,
    recompute_ms,
)
from replicas.kv_swap.moves import Bandwidths, Direction, Tier

BLOCK_BYTES = 2**20
MEASURED = Bandwidths(out_bytes_per_s=10e9, in_bytes_per_s=5e9)
BIG = 1000 * BLOCK_BYTES


def cost() -> MoveCost:
    return MoveCost(BLOCK_BYTES, MEASURED)


def correction(costs: MoveCost, direction: Direction, now_s: float) -> float:
    """How many times as long as measured at start-up."""
    return costs.estimate_ms(1000, direction, now_s) / cost().estimate_ms(1000, direction, 0.0)


def observe(costs: MoveCost, slower: float, now_s: float, num_bytes: int = BIG) -> None:
    """A move out that took `slower` times as long as measured at start-up."""
    costs.observe(Direction.OUT, num_bytes, slower * num_bytes / MEASURED.out_bytes_per_s, now_s)


@pytest.mark.parametrize(
    ("num_blocks", "direction", "expected_ms"),
    [
        (0, Direction.OUT, 0.0),
        (1000, Direction.OUT, 104.8576),
        (1000, Direction.IN, 209.7152),
    ],
)
def test_estimate_is_bytes_by_the_measured_rate(num_blocks: int, direction: Direction, expected_ms: float) -> None:
    assert cost().estimate_ms(num_blocks, direction, 0.0) == pytest.approx(expected_ms)


def test_estimate_of_the_design_example_is_50_ms() -> None:
    llama_8b_token_bytes = 128 * 1024
    at_12_gb = MoveCost(16 * llama_8b_token_bytes, Bandwidths(12e9, 12e9))
    assert at_12_gb.estimate_ms(4600 // 16, Direction.OUT, 0.0) == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_move_cost_refuses_a_rate_that_is_none(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        MoveCost(BLOCK_BYTES, Bandwidths(1e9, bandwidth))


@pytest.mark.parametrize("slower", [0.25, 1.0, 3.0, 40.0])
def test_estimate_follows_what_moves_take(slower: float) -> None:
    costs = cost()
    for i in range(40):
        observe(costs, slower, i * 0.1)
    assert correction(costs, Direction.OUT, 4.0) == pytest.approx(slower, rel=0.25)
    assert correction(costs, Direction.IN, 4.0) == 1.0


def test_estimate_follows_a_rate_that_changes() -> None:
    costs = cost()
    for i in range(1000):
        observe(costs, 1.0, i * 0.01)
    for i in range(3 * int(MAX_WEIGHT)):
        observe(costs, 4.0, 10 + i * 0.01)
    assert correction(costs, Direction.OUT, 10.5) == pytest.approx(4.0, rel=0.25)


def test_small_moves_do_not_dominate() -> None:
    """Ten blocks out of a hundred moves are one of a thousand: a millisecond, most of it fixed cost."""
    costs = cost()
    for i in range(100):
        observe(costs, 20.0, i * 0.01, num_bytes=BLOCK_BYTES // 10)
        if i % 10 == 0:
            observe(costs, 1.0, i * 0.01)
    assert correction(costs, Direction.OUT, 1.0) < 1.6


def test_weight_grows_with_the_estimate_and_ends_at_one() -> None:
    moved = []
    for share in (0.01, 0.1, 1.0, 10.0):
        costs = cost()
        observe(costs, 2.0, 0.0, num_bytes=int(share * FULL_WEIGHT_MS / 1e3 * MEASURED.out_bytes_per_s))
        moved.append(math.log(correction(costs, Direction.OUT, 0.0)))
    assert moved[0] < moved[1] / 5 < moved[2] / 25
    assert moved[2] == pytest.approx(moved[3], rel=1e-6)


@pytest.mark.parametrize("slower", [1e6, 1e-6])
def test_one_disturbed_move_counts_as_missed_by_a_bounded_factor(slower: float) -> None:
    costs, bounded = cost(), cost()
    observe(costs, slower, 0.0)
    observe(bounded, OUTLIER_RATIO if slower > 1 else 1 / OUTLIER_RATIO, 0.0)
    assert correction(costs, Direction.OUT, 0.0) == pytest.approx(correction(bounded, Direction.OUT, 0.0))


def test_estimate_returns_to_the_measurement_after_a_slow_spell() -> None:
    costs = cost()
    for i in range(100):
        observe(costs, 30.0, i * 0.01)
    at_end = correction(costs, Direction.OUT, 1.0)
    assert at_end > 20
    later = [correction(costs, Direction.OUT, 1.0 + n * HALF_LIFE_S) for n in (2, 6, 12)]
    assert at_end > later[0] > later[1] > later[2]
    assert later[2] < 1.1


@pytest.mark.parametrize(("num_bytes", "seconds"), [(0, 1.0), (BIG, 0.0)])
def test_observation_without_bytes_or_time_says_nothing(num_bytes: int, seconds: float) -> None:
    costs = cost()
    costs.observe(Direction.OUT, num_bytes, seconds, 0.0)
    assert correction(costs, Direction.OUT, 0.0) == 1.0


@given(
    st.lists(
        st.tuples(st.integers(1, 10**11), st.floats(1e-9, 1e4), st.floats(0, 1e6), st.sampled_from(list(Direction))),
        max_size=60,
    )
)
def test_estimate_stays_finite_positive_and_in_proportion(
    moves: list[tuple[int, float, float, Direction]],
) -> None:
    costs = cost()
    for num_bytes, seconds, now_s, direction in moves:
        costs.observe(direction, num_bytes, seconds, now_s)
        for seen in Direction:
            one = costs.estimate_ms(1, seen, now_s)
            assert math.isfinite(one)
            assert one > 0
            assert costs.estimate_ms(7, seen, now_s) == pytest.approx(7 * one)


@pytest.mark.parametrize(
    ("num_tokens", "rate", "expected_ms"), [(1000, 500.0, 2000.0), (0, 500.0, 0.0), (1000, None, None), (10, 0.0, None)]
)
def test_recompute_ms(num_tokens: int, rate: float | None, expected_ms: float | None) -> None:
    assert recompute_ms(num_tokens, rate) == expected_ms


FITS = TierView(has_room=True, out_ms=50.0, in_ms=30.0)
FULL = replace(FITS, has_room=False)
SLOW = replace(FITS, out_ms=50.1)
VICTIM = VictimView(num_own_blocks=10, recompute_ms=None, can_refuse=True, memory=FITS)

TO_MEMORY = ExitChoice(Exit.SWAP, ExitReason.FITS, Tier.MEMORY)
TO_DIRECTORY = ExitChoice(Exit.SWAP, ExitReason.FITS, Tier.DIRECTORY)
REFUSED = ExitChoice(Exit.REFUSED, ExitReason.OVER_LIMIT)
OVER_LIMIT = ExitChoice(Exit.RECOMPUTE, ExitReason.OVER_LIMIT)
NO_ROOM = ExitChoice(Exit.RECOMPUTE, ExitReason.NO_ROOM)
CHEAPER = ExitChoice(Exit.RECOMPUTE, ExitReason.RECOMPUTE_IS_CHEAPER)
NOTHING = ExitChoice(Exit.RECOMPUTE, ExitReason.NOTHING_TO_MOVE)

RULES = [
    # What the victim is, and what becomes of it with over_limit "queue", "recompute", and where it cannot be refused.
    ("fits", VICTIM, TO_MEMORY, TO_MEMORY, TO_MEMORY),
    ("over limit", replace(VICTIM, memory=SLOW), REFUSED, OVER_LIMIT, OVER_LIMIT),
    ("full", replace(VICTIM, memory=FULL), NO_ROOM, NO_ROOM, NO_ROOM),
    ("over limit, full", replace(VICTIM, memory=replace(SLOW, has_room=False)), REFUSED, OVER_LIMIT, OVER_LIMIT),
    ("in is slow", replace(VICTIM, memory=replace(FITS, in_ms=1e6)), TO_MEMORY, TO_MEMORY, TO_MEMORY),
    ("nothing own", replace(VICTIM, num_own_blocks=0), NOTHING, NOTHING, NOTHING),
    ("nothing own, over limit", replace(VICTIM, num_own_blocks=0, memory=SLOW), NOTHING, NOTHING, NOTHING),
    ("recompute dearer", replace(VICTIM, recompute_ms=80.1), TO_MEMORY, TO_MEMORY, TO_MEMORY),
    ("recompute cheaper", replace(VICTIM, recompute_ms=80.0), CHEAPER, CHEAPER, CHEAPER),
    ("recompute cheaper, over limit", replace(VICTIM, recompute_ms=70.0, memory=SLOW), CHEAPER, CHEAPER, CHEAPER),
    ("recompute cheaper, full", replace(VICTIM, recompute_ms=70.0, memory=FULL), CHEAPER, CHEAPER, CHEAPER),
    ("recompute dearer, over limit", replace(VICTIM, recompute_ms=1e3, memory=SLOW), REFUSED, OVER_LIMIT, OVER_LIMIT),
    ("both fit", replace(VICTIM, directory=FITS), TO_MEMORY, TO_MEMORY, TO_MEMORY),
    ("full, directory", replace(VICTIM, memory=FULL, directory=FITS), TO_DIRECTORY, TO_DIRECTORY, TO_DIRECTORY),
    ("full, directory full", replace(VICTIM, memory=FULL, directory=FULL), NO_ROOM, NO_ROOM, NO_ROOM),
    ("full, directory slow", replace(VICTIM, memory=FULL, directory=SLOW), NO_ROOM, NO_ROOM, NO_ROOM),
    (
        "full, recompute cheaper than the directory",
        replace(VICTIM, memory=FULL, directory=replace(FITS, in_ms=1e3), recompute_ms=1000.0),
        NO_ROOM,
        NO_ROOM,
        NO_ROOM,
    ),
    ("over limit, directory", replace(VICTIM, memory=SLOW, directory=FITS), REFUSED, OVER_LIMIT, OVER_LIMIT),
]


@pytest.mark.parametrize(("victim", "queue", "recompute", "forced"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_decide_exit(victim: VictimView, queue: ExitChoice, recompute: ExitChoice, forced: ExitChoice) -> None:
    assert decide_exit(victim, 50.0, "queue") == queue
    assert decide_exit(victim, 50.0, "recompute") == recompute
    for over_limit in ("queue", "recompute"):
        assert decide_exit(replace(victim, can_refuse=False), 50.0, over_limit) == forced  # type: ignore[arg-type]


tiers = st.builds(TierView, st.booleans(), st.floats(0, 200), st.floats(0, 200))
victims = st.builds(
    VictimView, st.integers(0, 3), st.none() | st.floats(0, 400), st.booleans(), tiers, st.none() | tiers
)


@given(victims, st.floats(1, 100), st.sampled_from(["queue", "recompute"]))
def test_decide_exit_swaps_only_what_fits_within_the_limit_and_beats_recompute(
    victim: VictimView, max_move_ms: float, over_limit: str
) -> None:
    choice = decide_exit(victim, max_move_ms, over_limit)  # type: ignore[arg-type]
    assert (choice.tier is not None) == (choice.exit is Exit.SWAP)
    if choice.exit is Exit.REFUSED:
        assert victim.can_refuse
        assert over_limit == "queue"
    if choice.tier is not None:
        tier = victim.memory if choice.tier is Tier.MEMORY else victim.directory
        assert tier is not None
        assert tier.has_room
        assert tier.out_ms <= max_move_ms
        assert victim.recompute_ms is None or tier.out_ms + tier.in_ms < victim.recompute_ms

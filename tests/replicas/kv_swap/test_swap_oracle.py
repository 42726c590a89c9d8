"""KV that was swapped is the KV that was there: random runs over symbolic KV, which is checked at every read.

The harness moves contents as a copy might: late, in any order that the accounts allow, poisoning what it will write.
Whether it would notice is tested here as well. `MUTATIONS` breaks one thing at a time, in our code or in what the
workers do, and a run must fail: loads left out; stores left out; blocks freed before the copy is done (stores too
late); room used by another before the copy is done; one worker's word taken for both; a load believed before it is
done; a failed load, or a failed store, taken for a good one; one token too many; blocks put back from the wrong place;
a prefix that was evicted taken for there; a request resumed while it is still being copied out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicas.kv_swap.counts import LossReason
from replicas.kv_swap.ledger import Flight, SwapLedger, Swapped
from replicas.kv_swap.moves import Direction
from replicas.kv_swap.room import SwapRoom
from replicas.kv_swap.worker import SwapWorker
from tests.replicas.scheduler.harness.swap import SymbolicCopier
from tests.replicas.scheduler.harness.swap_run import SwapRun, play

RUNS = st.builds(
    SwapRun,
    seed=st.integers(0, 10_000),
    depth=st.sampled_from([1, 2]),
    is_v2=st.booleans(),
    prefix_cache=st.booleans(),
    num_workers=st.sampled_from([1, 1, 2]),
    num_blocks=st.sampled_from([24, 30, 40, 60]),
    max_num_seqs=st.sampled_from([3, 8]),
    token_budget=st.sampled_from([64, 128, 512]),
    watermark=st.sampled_from([0.0, 0.0, 0.1]),
    pause=st.booleans(),
    host_slots=st.sampled_from([400, 400, 30, 5, 1]),
    directory_bytes=st.sampled_from([0, 0, 8000]),
    max_move_ms=st.sampled_from([50, 50, 0.001]),
    over_limit=st.sampled_from(["queue", "recompute"]),
    max_delay_steps=st.sampled_from([0, 1, 3]),
    fail_ratio=st.sampled_from([0.0, 0.0, 0.3]),
    num_requests=st.integers(2, 20),
    num_aborts=st.sampled_from([0, 0, 15]),
    last_arrival_step=st.sampled_from([1, 60]),
)


@settings(
    max_examples=120, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(run=RUNS)
def test_swap_oracle_finds_nothing_wrong_whatever_happens(run: SwapRun) -> None:
    outcome = play(run)
    assert outcome.driver.num_steps > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_swap_oracle_sees_every_kind_of_move(depth: int, is_v2: bool, prefix_cache: bool) -> None:
    """So that the runs above are not about nothing."""
    totals: Counter[str] = Counter()
    for seed in range(8):
        run = SwapRun(
            seed,
            depth,
            is_v2,
            prefix_cache,
            num_workers=1 + seed % 2,
            num_blocks=(24, 40)[seed % 2],
            host_slots=(400, 20)[seed % 3 == 2],
            fail_ratio=(0.0, 0.3)[seed % 4 == 3],
            directory_bytes=(0, 8000)[seed % 6 == 5],
        )
        outcome = play(run)
        counts, preemptions = outcome.counts, outcome.scheduler.preemption_counts
        totals["out"] += counts.num_swapped_out
        totals["in"] += counts.num_swapped_in
        totals["swapped"] += preemptions.num_swapped
        totals["out failed"] += counts.num_recomputed[LossReason.OUT_FAILED]
        totals["in failed"] += counts.num_recomputed[LossReason.IN_FAILED]
        totals["no room"] += counts.num_recomputed[LossReason.NO_ROOM]
        totals["refused by vLLM"] += preemptions.num_refused
    assert totals["refused by vLLM"] == 0
    assert all(totals[kind] > 0 for kind in ("out", "in", "swapped", "out failed", "in failed", "no room")), totals


def _nothing(*_: object, **__: object) -> None:
    return None


def _loads_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SymbolicCopier, "_set_kv", _nothing)


def _stores_left_out(patch: pytest.MonkeyPatch) -> None:
    set_host = SymbolicCopier._set_host
    patch.setattr(SymbolicCopier, "_set_host", lambda self, slots, content: set_host(self, slots, content * 0))


def _blocks_freed_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    begin = SwapLedger._begin

    def begin_without_holding(self: SwapLedger, flight: Flight) -> int:
        self._pool.free_blocks(reversed(flight.source_blocks))
        flight.source_blocks = []
        return begin(self, flight)

    patch.setattr(SwapLedger, "_begin", begin_without_holding)
    patch.setattr(SwapLedger, "check_invariants", _nothing)


def _room_used_before_the_copy_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwapRoom, "begin_move", _nothing)
    patch.setattr(SwapRoom, "end_move", _nothing)


def _one_word_for_both_workers(patch: pytest.MonkeyPatch) -> None:
    note_done = SwapLedger.note_done

    def note_first(self: SwapLedger, done: list) -> list:
        self._num_workers = 1
        return note_done(self, [one for one in done if one.move_id in self._flights])

    patch.setattr(SwapLedger, "note_done", note_first)


def _load_believed_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwapWorker, "take_loaded", lambda self: {load.request_id for load in self._loads.values()})


def _failed_load_taken_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwapWorker, "take_unloaded_blocks", lambda _: set())


def _failed_store_taken_for_good(patch: pytest.MonkeyPatch) -> None:
    note = SwapLedger._note_copy
    patch.setattr(
        SwapLedger,
        "_note_copy",
        lambda self, flight, slowest, error: note(
            self, flight, slowest, None if flight.direction is Direction.OUT else error
        ),
    )


def _one_token_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Swapped, "__init__", _with_more_tokens(Swapped.__init__))


def _with_more_tokens(init: Callable) -> Callable:
    def make(self: Swapped, num_tokens: int, *rest: object) -> None:
        init(self, num_tokens + 1, *rest)

    return make


def _put_back_from_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    load = SwapLedger._load
    patch.setattr(SwapLedger, "_load", lambda self, i, swapped, blocks, _: load(self, i, swapped, blocks, 0))


def _lost_prefix_taken_for_there(patch: pytest.MonkeyPatch) -> None:
    """Shared blocks are let go at once, and nobody looks whether they are still there."""
    swap_out, num_to_load = SwapLedger.swap_out, SwapLedger.num_tokens_to_load

    def swap_out_and_let_go(self: SwapLedger, *values: object) -> bool:
        is_out = swap_out(self, *values)
        self.release_kept()
        return is_out

    def believe(self: SwapLedger, request_id: str, num_tokens: int, num_local: int) -> int | None:
        if request_id in self._swapped:
            num_local = max(num_local, self._swapped[request_id].first_block * 16)
        return num_to_load(self, request_id, num_tokens, num_local)

    patch.setattr(SwapLedger, "swap_out", swap_out_and_let_go)
    patch.setattr(SwapLedger, "num_tokens_to_load", believe)


def _resumed_while_it_is_copied(patch: pytest.MonkeyPatch) -> None:
    """Right as long as copies do not fail, as moves that touch the same slots keep their order."""
    init = Swapped.__init__

    def make(self: Swapped, *values: object) -> None:
        init(self, *values)
        self.is_out = True

    patch.setattr(Swapped, "__init__", make)


MUTATIONS = [
    _loads_left_out,
    _stores_left_out,
    _blocks_freed_before_the_copy,
    _room_used_before_the_copy_is_done,
    _one_word_for_both_workers,
    _load_believed_before_it_is_done,
    _failed_load_taken_for_good,
    _failed_store_taken_for_good,
    _one_token_too_many,
    _put_back_from_the_wrong_place,
    _lost_prefix_taken_for_there,
    _resumed_while_it_is_copied,
]
MUTANT_RUN = SwapRun(num_workers=2, num_blocks=40, host_slots=60, num_aborts=10)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_swap_oracle_notices(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):  # noqa: PT012  # ValueError: contents do not fit the blocks
        for seed in range(20):
            for fail_ratio in (0.0, 0.3):
                play(replace(MUTANT_RUN, seed=seed, depth=1 + seed % 2, fail_ratio=fail_ratio))


def test_swap_oracle_finds_nothing_wrong_in_the_runs_of_the_mutants() -> None:
    for seed in range(3):
        for depth, fail_ratio in ((1, 0.0), (2, 0.3)):
            outcome = play(replace(MUTANT_RUN, seed=seed, depth=depth, fail_ratio=fail_ratio))
            assert outcome.counts.num_swapped_in > 0

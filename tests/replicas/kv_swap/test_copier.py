"""The copier on the CPU, over KV caches as vLLM makes them: the same bits come back, in every layout.

Bits are compared through the views that attention reads, so a region left out, or a wrong offset, shows.

Mutations tried, each failing here: out and in mixed up; only the first region copied; block ids not checked; a move
that failed not reported; later moves dropped after one that failed; the order of overlapping moves given up; the pieces
of a large move put in the wrong place; blocks of a file skipped or not, wrongly; a file dropped before it is read; what
is measured left changed; files left after the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_cache_layout import KVCacheLayout

from replicas.kv_swap import copier as copier_module
from replicas.kv_swap import directory as directory_module
from replicas.kv_swap import transfer as transfer_module
from replicas.kv_swap.copier import BlockCopier
from replicas.kv_swap.directory import SwapDirectory, file_bytes
from replicas.kv_swap.moves import Direction, MoveDone, Tier
from replicas.kv_swap.regions import UnsupportedLayoutError, block_bytes
from tests.replicas.kv_swap.kv_caches import Cache, hybrid, make_cache, mixed, plain, same

NUM_BLOCKS = 12
NUM_SLOTS = 8
PATIENCE_S = 30.0


class Refused(Exception):
    """What a failing copy raises."""


class Bench:
    """A cache, its copier, and a gate at which moves may be made to wait or fail."""

    def __init__(self, cache: Cache, directory: SwapDirectory | None = None, num_slots: int = NUM_SLOTS) -> None:
        self.cache = cache
        self.failing: set[int] = set()
        self.gates: dict[int, threading.Event] = {}
        self.copier = BlockCopier(cache.config, cache.layers, num_slots, directory, self._before_move)
        self.cache.fill(1)

    def _before_move(self, move_id: int) -> None:
        if move_id in self.gates:
            assert self.gates[move_id].wait(PATIENCE_S)
        if move_id in self.failing:
            raise Refused("as asked for")

    def ended(self) -> list[MoveDone]:
        """All moves, once they have ended."""
        done: list[MoveDone] = []
        pause = threading.Event()
        for _ in range(int(PATIENCE_S * 1000)):
            done += self.copier.poll()
            if not self.copier.num_in_flight:
                return done
            pause.wait(0.001)
        raise AssertionError(f"still in flight: {self.copier.num_in_flight}")


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(cache: Cache | None = None, files: bool = False, max_bytes: int = 2**24, **values: Any) -> Bench:
        directory = SwapDirectory(tmp_path, f"engine{len(made)}", 0, max_bytes) if files else None
        made.append(Bench(cache or make_cache(plain(), NUM_BLOCKS), directory, **values))
        return made[-1]

    yield make
    for bench in made:
        for gate in bench.gates.values():
            gate.set()
        bench.copier.shutdown()


LAYOUTS = [
    pytest.param(groups, layout, id=f"{groups.__name__}-{layout.name}")
    for groups in (plain, hybrid, mixed)
    for layout in KVCacheLayout
    if groups is not mixed or layout not in (KVCacheLayout.LHBNC, KVCacheLayout.BHLNC)
]


@pytest.mark.parametrize(("groups", "layout"), LAYOUTS)
@pytest.mark.parametrize("files", [False, True], ids=["memory", "file"])
def test_copier_brings_the_same_bits_back_to_other_blocks(
    make_bench: Callable[..., Bench], groups: Any, layout: KVCacheLayout, files: bool
) -> None:
    bench = make_bench(make_cache(groups(), NUM_BLOCKS, layout), files=files)
    cache, copier = bench.cache, bench.copier
    out_of, into, slots = [7, 2, 9], [3, 11, 0], [5, 0, 6]
    saved = cache.blocks(out_of)
    others = [b for b in range(NUM_BLOCKS) if b not in (*out_of, *into)]
    untouched = cache.blocks(others)
    copier.start_out_to_file(1, out_of, 0) if files else copier.start_out(1, out_of, slots)
    (out,) = bench.ended()
    assert same(cache.blocks(out_of), saved)
    cache.wipe(out_of)
    copier.start_in_from_file(2, 0, into) if files else copier.start_in(2, slots, into)
    (back,) = bench.ended()
    assert same(cache.blocks(into), saved)
    assert same(cache.blocks(others), untouched)
    assert not any(view.any() for view in cache.blocks(out_of))
    tier = Tier.DIRECTORY if files else Tier.MEMORY
    num_bytes = 3 * block_bytes(cache.config)
    assert (out.move_id, out.tier, out.direction, out.num_bytes, out.error) == (1, tier, Direction.OUT, num_bytes, None)
    assert (back.move_id, back.tier, back.direction, back.error) == (2, tier, Direction.IN, None)
    assert out.seconds > 0
    assert copier.block_bytes == block_bytes(cache.config)


@pytest.mark.parametrize("piece_bytes", [1, 1536, 2**19])
def test_copier_copies_whatever_the_size_of_its_pieces(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(transfer_module, "PIECE_BYTES", piece_bytes)
    bench = make_bench()
    saved = bench.cache.blocks(range(8))
    bench.copier.start_out(1, range(8), [3, 1, 4, 0, 5, 2, 6, 7])
    bench.copier.start_in(2, [3, 1, 4, 0, 5, 2, 6, 7], [4, 5, 6, 7, 8, 9, 10, 11])
    assert [done.error for done in bench.ended()] == [None, None]
    assert same(bench.cache.blocks(range(4, 12)), saved)


@pytest.mark.parametrize("chunk_bytes", [1, 3000, 2**20])
@pytest.mark.parametrize(("skip_blocks", "num_blocks"), [(0, 8), (3, 5), (3, 2), (7, 1), (8, 0)])
def test_copier_reads_part_of_a_file(
    make_bench: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    chunk_bytes: int,
    skip_blocks: int,
    num_blocks: int,
) -> None:
    monkeypatch.setattr(directory_module, "CHUNK_BYTES", chunk_bytes)
    bench = make_bench(files=True)
    saved = bench.cache.blocks(range(skip_blocks, skip_blocks + num_blocks))
    bench.copier.start_out_to_file(1, range(8), 5)
    bench.copier.start_in_from_file(2, 5, range(11, 11 - num_blocks, -1), skip_blocks)
    assert [done.error for done in bench.ended()] == [None, None]
    assert same(bench.cache.blocks(range(11, 11 - num_blocks, -1)), saved)


@pytest.mark.parametrize("skip_blocks", [-1, 7])
def test_copier_refuses_blocks_that_a_file_has_not(make_bench: Callable[..., Bench], skip_blocks: int) -> None:
    bench = make_bench(files=True)
    bench.copier.start_out_to_file(1, range(8), 5)
    bench.copier.start_in_from_file(2, 5, [10, 11], skip_blocks)
    good, bad = bench.ended()
    assert good.error is None
    assert bad.error is not None
    assert "of a file of 8" in bad.error


@pytest.mark.parametrize("files", [False, True], ids=["memory", "file"])
def test_move_that_raises_is_reported_and_later_ones_run(make_bench: Callable[..., Bench], files: bool) -> None:
    bench = make_bench(files=files)
    bench.failing = {1, 3}
    saved = bench.cache.block(4)
    before = bench.cache.blocks(range(NUM_BLOCKS))
    for move_id in (1, 2, 3):
        if files:
            bench.copier.start_out_to_file(move_id, [4], move_id)
        else:
            bench.copier.start_out(move_id, [4], [move_id])
    first, second, third = bench.ended()
    assert [done.move_id for done in (first, second, third)] == [1, 2, 3]
    assert first.error == third.error == "Refused: as asked for"
    assert (first.seconds, second.error) == (0.0, None)
    assert same(bench.cache.blocks(range(NUM_BLOCKS)), before)
    if files:
        bench.copier.start_in_from_file(4, 2, [9])
        bench.copier.start_in_from_file(5, 1, [9])
    else:
        bench.copier.start_in(4, [2], [9])
    back, *missing = bench.ended()
    assert back.error is None
    assert same(bench.cache.block(9), saved)
    assert all("no such swap file" in (done.error or "") for done in missing)
    assert len(missing) == files


@pytest.mark.parametrize(
    ("blocks", "slots", "message"),
    [
        ([NUM_BLOCKS], [0], "a block is outside 0..11"),
        ([-1], [0], "a block is outside"),
        ([0], [NUM_SLOTS], "a slot is outside 0..7"),
        ([0], [-1], "a slot is outside"),
        ([0, 1], [0], "2 blocks for 1 slots"),
    ],
)
def test_copier_touches_no_memory_that_is_not_a_blocks(
    make_bench: Callable[..., Bench], blocks: list[int], slots: list[int], message: str
) -> None:
    bench = make_bench()
    before = bench.cache.blocks(range(NUM_BLOCKS))
    bench.copier.start_out(1, blocks, slots)
    bench.copier.start_in(2, slots, blocks)
    for done in bench.ended():
        assert message in (done.error or "")
    assert same(bench.cache.blocks(range(NUM_BLOCKS)), before)


def test_later_move_over_the_same_slots_runs_after_the_earlier_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.gates = {1: threading.Event()}
    saved = bench.cache.block(0), bench.cache.block(1)
    bench.copier.start_out(1, [0], [3])
    bench.copier.start_in(2, [3], [5])
    bench.copier.start_out(3, [1], [3])
    bench.copier.start_in(4, [3], [6])
    assert bench.copier.poll() == []
    assert bench.copier.num_in_flight == 4
    bench.gates[1].set()
    assert [done.move_id for done in bench.ended()] == [1, 2, 3, 4]
    assert same(bench.cache.block(5), saved[0])
    assert same(bench.cache.block(6), saved[1])


def test_file_that_hangs_holds_only_moves_up_that_touch_the_same(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=True)
    bench.gates = {1: threading.Event()}
    bench.copier.start_out_to_file(1, [0, 1], 7)
    bench.copier.start_out(2, [2, 3], [0, 1])
    bench.copier.start_in(3, [0, 1], [4, 5])
    bench.copier.start_in(4, [0], [1])
    done: list[MoveDone] = []
    pause = threading.Event()
    while len(done) < 2:
        done += bench.copier.poll()
        pause.wait(0.001)
    assert [d.move_id for d in done] == [2, 3]
    saved = bench.cache.blocks([0, 1])
    bench.gates[1].set()
    assert [d.move_id for d in bench.ended()] == [1, 4]
    bench.copier.start_in_from_file(5, 7, [8, 9])
    bench.ended()
    assert same(bench.cache.blocks([8, 9]), saved)


def test_file_is_dropped_after_the_moves_that_use_it(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(files=True)
    bench.gates = {2: threading.Event()}
    saved = bench.cache.block(0)
    bench.copier.start_out_to_file(1, [0], 7)
    bench.copier.start_in_from_file(2, 7, [5])
    bench.copier.drop_file(7)
    bench.copier.drop_file(7)
    bench.copier.start_in_from_file(3, 7, [6])
    bench.gates[2].set()
    errors = [done.error for done in bench.ended()]
    assert errors[:2] == [None, None]
    assert "no such swap file" in (errors[2] or "")
    assert same(bench.cache.block(5), saved)
    assert not list(tmp_path.rglob("*.kv"))


def test_file_moves_fail_where_there_is_no_directory(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.copier.start_out_to_file(1, [0], 0)
    bench.copier.start_in_from_file(2, 0, [0])
    bench.copier.drop_file(0)
    assert [done.error for done in bench.ended()] == ["no swap.directory is set"] * 2
    assert bench.copier.measure_directory() is None


def test_measure_leaves_every_block_as_it_was(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_module, "MEASURED_ROUNDS", 2)  # an even number of exchanges would undo itself
    bench = make_bench(files=True)
    before = bench.cache.blocks(range(NUM_BLOCKS))
    bandwidths = (bench.copier.measure(), bench.copier.measure_directory())
    for bandwidth in bandwidths:
        assert bandwidth is not None
        assert all(bandwidth.of(direction) > 0 for direction in Direction)
    assert same(bench.cache.blocks(range(NUM_BLOCKS)), before)
    assert not list(tmp_path.rglob("*.kv*"))


def test_measure_directory_is_none_where_the_directory_fails(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(files=True)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory_module, "_open_private", fails)
    assert bench.copier.measure_directory() is None


@pytest.mark.parametrize(("num_blocks", "is_measured"), [(0, False), (1, True), (3, True)])
def test_measure_directory_needs_no_more_room_than_there_is(
    make_bench: Callable[..., Bench], num_blocks: int, is_measured: bool
) -> None:
    bench = make_bench(files=True, max_bytes=file_bytes(num_blocks, 1536))
    assert bench.copier.block_bytes == 1536
    assert (bench.copier.measure_directory() is not None) is is_measured


def test_measure_moves_a_bounded_number_of_bytes(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_module, "MEASURED_BYTES", 1)
    bench = make_bench()
    moved: list[int] = []
    copy = bench.copier._memory.copy

    def counting(direction: Direction, blocks: Any, slots: Any, after: Any) -> float:
        moved.append(len(blocks))
        return copy(direction, blocks, slots, after)

    monkeypatch.setattr(bench.copier._memory, "copy", counting)
    bench.copier.measure()
    assert set(moved) == {1}


def test_shutdown_deletes_the_files_and_may_be_called_twice(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(files=True)
    bench.copier.start_out_to_file(1, [0], 0)
    assert bench.ended()[0].error is None
    assert list(tmp_path.rglob("*.kv"))
    bench.copier.shutdown()
    bench.copier.shutdown()
    assert not list(tmp_path.iterdir())
    bench.copier.start_out(2, [0], [0])
    bench.copier.start_out_to_file(3, [0], 1)
    bench.copier.drop_file(1)
    assert [done.error for done in bench.ended()] == ["the copier is shut down"] * 2


def test_copying_threads_are_nicer_than_the_engines(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=True)
    niceness: dict[int, int] = {}

    def note(move_id: int) -> None:
        niceness[move_id] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    bench.copier._before_move = note
    bench.copier.start_out(1, [0], [0])
    bench.copier.start_out_to_file(2, [0], 0)
    bench.ended()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert own < min(niceness.values())
    assert len(niceness) == 2


def test_copier_refuses_to_start_without_a_slot() -> None:
    cache = make_cache(plain(), NUM_BLOCKS)
    with pytest.raises(ValueError, match=r"swap\.host_bytes has no room"):
        BlockCopier(cache.config, cache.layers, 0)


def test_copier_refuses_caches_that_are_not_one_allocation() -> None:
    cache = make_cache(plain(), NUM_BLOCKS)
    apart = {name: view.clone() for name, view in cache.layers.items()}
    with pytest.raises(UnsupportedLayoutError, match="do not share one allocation"):
        BlockCopier(cache.config, apart, NUM_SLOTS)
    with pytest.raises(UnsupportedLayoutError, match="no layer"):
        BlockCopier(cache.config, {"other": torch.zeros(1)}, NUM_SLOTS)


def test_copier_refuses_an_allocation_smaller_than_its_configuration() -> None:
    small, large = make_cache(plain(), NUM_BLOCKS), make_cache(plain(), NUM_BLOCKS + 1)
    with pytest.raises(UnsupportedLayoutError, match="ends beyond the KV cache"):
        BlockCopier(large.config, small.layers, NUM_SLOTS)


def test_copier_takes_layers_that_are_lists_of_views(make_bench: Callable[..., Bench]) -> None:
    cache = make_cache(plain(), NUM_BLOCKS)
    bench = make_bench(Cache(cache.config, cache.layers))
    bench.copier.shutdown()
    bench.copier = BlockCopier(cache.config, {name: [view] for name, view in cache.layers.items()}, NUM_SLOTS)
    saved = cache.block(0)
    bench.copier.start_out(1, [0], [0])
    bench.copier.start_in(2, [0], [1])
    assert [done.error for done in bench.ended()] == [None, None]
    assert same(cache.block(1), saved)


moves = st.tuples(
    st.sampled_from(list(Direction)),
    st.lists(st.tuples(st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_SLOTS - 1)), min_size=1, max_size=4),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(moves, max_size=25))
def test_moves_have_the_effect_they_would_have_one_after_the_other(
    plan: list[tuple[Direction, list[tuple[int, int]], bool]],
) -> None:
    """Against a model with a value a block, whatever overlaps; moves that fail change nothing."""
    bench = Bench(make_cache(plain(), NUM_BLOCKS, KVCacheLayout.LHBNC))
    content = {block: bench.cache.block(block) for block in range(NUM_BLOCKS)}
    blocks: dict[int, int] = {block: block for block in content}
    slots: dict[int, int] = {}
    for move_id, (direction, pairs, fails) in enumerate(plan):
        pairs = list({(block if direction is Direction.IN else slot): (block, slot) for block, slot in pairs}.values())
        if direction is Direction.IN:
            pairs = [(block, slot) for block, slot in pairs if slot in slots]
        if fails:
            bench.failing.add(move_id)
        device, host = [block for block, _ in pairs], [slot for _, slot in pairs]
        if direction is Direction.OUT:
            bench.copier.start_out(move_id, device, host)
            written = {slot: blocks[block] for block, slot in pairs}
            slots |= {} if fails else written
        else:
            bench.copier.start_in(move_id, host, device)
            blocks |= {} if fails else {block: slots[slot] for block, slot in pairs}
    done = bench.ended()
    bench.copier.shutdown()
    assert [d.move_id for d in done] == list(range(len(plan)))
    assert [d.error is not None for d in done] == [fails for _, _, fails in plan]
    for block, origin in blocks.items():
        assert same(bench.cache.block(block), content[origin])

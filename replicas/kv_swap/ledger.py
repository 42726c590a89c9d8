"""Who is swapped out, where its KV lies, and what is on its way: the scheduler's side of KV swap.

Owns the references that swapped requests keep on device blocks, and their room in host memory or the directory. It
never decides that somebody is swapped. Three promises hold it together:

* a block that is copied out stays referenced until every worker has said that the copy is done;
* room that a copy reads or writes is given to nobody else before that (the pools see to it);
* KV comes back only from a copy that every worker made without an error.

    swap_out --> out in flight --> swapped --> load in flight --> gone (its KV is on the device again)
                      |               |
                      +---------------+--> lost (failed, reset, aborted, prefix evicted): computed again, or ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from replicas.kv_swap.counts import LossReason, SwapCounts
from replicas.kv_swap.metadata import HostSlots, InMove, OutMove, SwapFile, SwapMoves
from replicas.kv_swap.moves import Direction, MoveDone, Tier
from replicas.kv_swap.room import SwapRoom


@dataclass(slots=True)
class Swapped:
    """A request whose KV is outside the device, or on its way there."""

    num_tokens: int
    """Tokens whose KV was there when it left."""
    first_block: int
    """Where in its block table the copied blocks begin; those before are `kept`."""
    num_blocks: int
    tier: Tier
    kept: list[KVCacheBlock]
    """Shared blocks, referenced so that they stay on the device."""
    is_out: bool = False
    """Whether the copy out is done."""


@dataclass(slots=True)
class Flight:
    """A copy that not every worker has finished."""

    request_id: str
    swapped: Swapped
    direction: Direction
    num_blocks: int
    source_blocks: list[KVCacheBlock]
    """Device blocks referenced until the copy is done: those of a copy out."""
    done: list[MoveDone] = field(default_factory=list)


class SwapLedger:
    """One engine's accounts. Called by the engine's core, in its one thread; each call costs O(blocks it names)."""

    def __init__(self, room: SwapRoom, block_pool: BlockPool, block_size: int, num_workers: int) -> None:
        self.room = room
        self.counts = SwapCounts()
        self._pool = block_pool
        self._block_size = block_size
        self._num_workers = num_workers
        self._swapped: dict[str, Swapped] = {}
        self._flights: dict[int, Flight] = {}
        self._loads: dict[str, int] = {}
        """Requests whose load is in flight, and its move."""
        self._next_move = 0
        self._moves = SwapMoves()

    def swap_out(self, request_id: str, table: Sequence[KVCacheBlock], num_tokens: int, tier: Tier) -> bool:
        """Copy a request's own KV out, beside the next forward pass; its caller lets go of `table` afterwards.

        `table`: its device blocks in order, of which `num_tokens` tokens have valid KV once the steps in flight are
        done. False, and nothing happens, when no block is its own or `tier` has no room.
        """
        assert request_id not in self._swapped, f"{request_id} is swapped out already"
        kept, own = split_table(table, num_tokens, self._block_size)
        if not own or not self.room.take(tier, request_id, len(own)):
            return False
        swapped = Swapped(num_tokens, len(kept), len(own), tier, kept)
        self._pool.touch(kept)
        self._pool.touch(own)
        self._swapped[request_id] = swapped
        move_id = self._begin(Flight(request_id, swapped, Direction.OUT, len(own), own))
        place = self.room.place_of(tier, request_id)
        self._moves.outs.append(OutMove(move_id, tuple(b.block_id for b in own), place))
        self.counts.num_swapped_out += 1
        self.counts.num_out_by_tier[tier] += 1
        self.counts.num_blocks_out += len(own)
        return True

    def is_leaving(self, request_id: str) -> bool:
        """Whether it is swapped out and its copy is still in flight."""
        swapped = self._swapped.get(request_id)
        return swapped is not None and not swapped.is_out

    def is_swapped(self, request_id: str) -> bool:
        return request_id in self._swapped

    def num_tokens_to_load(self, request_id: str, num_tokens: int, num_local_tokens: int) -> int | None:
        """Tokens whose KV a swapped request would load behind the `num_local_tokens` found on the device; 0 for all
        others; None while its copy out is in flight.

        `num_tokens`: all that are known of it, of which the last is computed in any case.
        """
        swapped = self._swapped.get(request_id)
        if swapped is None:
            return 0
        if not swapped.is_out:
            return None
        if num_local_tokens < swapped.first_block * self._block_size:
            self._lose(request_id, LossReason.PREFIX_LOST)
            return 0
        return max(0, min(swapped.num_tokens, num_tokens - 1) - num_local_tokens)

    def begin_load(self, request_id: str, table: Sequence[int], num_load_tokens: int, num_tokens: int) -> None:
        """A swapped request was given the device blocks `table`, to load `num_load_tokens` into the last of them.

        With nothing to load it is swapped no more: all of its KV was still on the device. Called for every request that
        is given blocks; those that are not swapped are passed over.
        """
        swapped = self._swapped.pop(request_id, None)
        if swapped is None:
            return
        if num_load_tokens > 0:
            end = min(swapped.num_tokens, num_tokens - 1)
            first, last = (end - num_load_tokens) // self._block_size, -(-end // self._block_size)
            self._load(request_id, swapped, tuple(table[first:last]), first - swapped.first_block)
        self.counts.num_swapped_in += num_load_tokens == 0
        self._let_go(request_id, swapped)

    def forget(self, request_id: str) -> None:
        """The request has ended. What is in flight for it ends by itself."""
        self._loads.pop(request_id, None)
        if (swapped := self._swapped.pop(request_id, None)) is not None:
            self._let_go(request_id, swapped)

    def take_moves(self) -> SwapMoves:
        """What begins with the step that was just scheduled."""
        moves, self._moves = self._moves, SwapMoves()
        return moves

    def note_done(self, done: Iterable[MoveDone]) -> list[tuple[Flight, MoveDone]]:
        """Workers have finished copies, each for itself; those that all have, each with its slowest worker's word."""
        ended: list[tuple[Flight, MoveDone]] = []
        for one in done:
            flight = self._flights[one.move_id]
            flight.done.append(one)
            if len(flight.done) == self._num_workers:
                del self._flights[one.move_id]
                ended.append((flight, self._end(one.move_id, flight)))
        return ended

    def lose_all(self) -> None:
        """KV from before must not be used any more: whoever is swapped is computed again.

        Blocks that are being copied out are let go at once, whatever is written to them then: nobody reads the copy.
        """
        for request_id in list(self._swapped):
            self._lose(request_id, LossReason.RESET)
        for flight in self._flights.values():
            blocks, flight.source_blocks = flight.source_blocks, []
            self._pool.free_blocks(reversed(blocks))

    def release_kept(self) -> bool:
        """Let go of the shared blocks of all who are swapped; False if there were none.

        They stay in the prefix cache for a while. A request whose prefix is gone when it resumes is computed again.
        """
        holders = [swapped for swapped in self._swapped.values() if swapped.kept]
        for swapped in holders:
            self._let_kept_go(swapped)
        self.counts.num_kept_released += len(holders)
        return bool(holders)

    def kept_blocks(self) -> Counter[int]:
        """Block id to the number of swapped requests that keep it."""
        return Counter(block.block_id for swapped in self._swapped.values() for block in swapped.kept)

    def num_kept_alone(self) -> int:
        """Blocks that only swapped requests hold: free if they let go."""
        return sum(self._pool.blocks[b].ref_cnt == count for b, count in self.kept_blocks().items())

    @property
    def num_freeing(self) -> int:
        """Blocks that are free when the copies out in flight are done."""
        return sum(block.ref_cnt == 1 for flight in self._flights.values() for block in flight.source_blocks)

    @property
    def is_freeing(self) -> bool:
        return any(flight.source_blocks for flight in self._flights.values())

    def leaving_blocks(self) -> Counter[Tier]:
        """Blocks on their way out: what a new copy waits for."""
        leaving: Counter[Tier] = Counter()
        for flight in self._flights.values():
            if flight.direction is Direction.OUT:
                leaving[flight.swapped.tier] += flight.num_blocks
        return leaving

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def num_loading(self) -> int:
        """Requests whose KV is on its way in, and which will run."""
        return len(self._loads)

    @property
    def has_loads(self) -> bool:
        """Whether KV is on its way in, be it for requests that have ended."""
        return any(flight.direction is Direction.IN for flight in self._flights.values())

    def check_invariants(self) -> None:
        """For tests: the pools add up, and every account has its other side."""
        self.room.check_invariants()
        leaving = {f.request_id for f in self._flights.values() if f.direction is Direction.OUT and f.source_blocks}
        assert all(swapped.is_out or request_id in leaving for request_id, swapped in self._swapped.items())
        assert not self._loads.keys() & self._swapped.keys(), "both swapped out and on its way in"
        assert self._loads.keys() <= {f.request_id for f in self._flights.values() if f.direction is Direction.IN}
        held = Counter(block.block_id for flight in self._flights.values() for block in flight.source_blocks)
        assert all(self._pool.blocks[b].ref_cnt >= n for b, n in (held + self.kept_blocks()).items())
        assert self._swapped.keys() == self.room.holders

    def held_blocks(self) -> Counter[int]:
        """For tests: block id to the references that swap has on it."""
        held = Counter(block.block_id for flight in self._flights.values() for block in flight.source_blocks)
        return held + self.kept_blocks()

    def _begin(self, flight: Flight) -> int:
        move_id = self._next_move
        self._next_move += 1
        self._flights[move_id] = flight
        self.room.begin_move(flight.swapped.tier, flight.request_id, move_id)
        return move_id

    def _load(self, request_id: str, swapped: Swapped, device_blocks: tuple[int, ...], skip: int) -> None:
        place: HostSlots | SwapFile = self.room.place_of(swapped.tier, request_id)
        if isinstance(place, HostSlots):
            place = HostSlots(place.slots[skip : skip + len(device_blocks)])
        else:
            place = SwapFile(place.file_id, skip)
        move_id = self._begin(Flight(request_id, swapped, Direction.IN, len(device_blocks), []))
        self._loads[request_id] = move_id
        self._moves.ins.append(InMove(move_id, request_id, place, device_blocks))
        self.counts.num_blocks_in += len(device_blocks)

    def _end(self, move_id: int, flight: Flight) -> MoveDone:
        self.room.end_move(flight.swapped.tier, move_id)
        self._pool.free_blocks(reversed(flight.source_blocks))
        slowest = max(flight.done, key=lambda one: one.seconds)
        error = next((one.error for one in flight.done if one.error is not None), None)
        if flight.direction is Direction.IN:
            self._loads.pop(flight.request_id, None)
            self.counts.num_swapped_in += error is None
        self._note_copy(flight, slowest, error)
        return slowest if error is None else next(one for one in flight.done if one.error is not None)

    def _note_copy(self, flight: Flight, slowest: MoveDone, error: str | None) -> None:
        if error is None:
            flight.swapped.is_out = True
            self.counts.num_bytes[flight.direction] += slowest.num_bytes
            self.counts.seconds[flight.direction] += slowest.seconds
        elif flight.direction is Direction.IN:
            self.counts.add_recomputed(LossReason.IN_FAILED)
        elif self._swapped.get(flight.request_id) is flight.swapped:
            self._lose(flight.request_id, LossReason.OUT_FAILED)

    def _lose(self, request_id: str, reason: LossReason) -> None:
        self._let_go(request_id, self._swapped.pop(request_id))
        self.counts.add_recomputed(reason)

    def _let_go(self, request_id: str, swapped: Swapped) -> None:
        """Its references and its room: the latter stays out of use while a copy needs it."""
        self._let_kept_go(swapped)
        dropped_file = self.room.give_back(swapped.tier, request_id)
        if dropped_file is not None:
            self._moves.dropped_files.append(dropped_file)

    def _let_kept_go(self, swapped: Swapped) -> None:
        kept, swapped.kept = swapped.kept, []
        self._pool.free_blocks(reversed(kept))


def split_table(
    table: Sequence[KVCacheBlock], num_tokens: int, block_size: int
) -> tuple[list[KVCacheBlock], list[KVCacheBlock]]:
    """The blocks with valid KV: a shared prefix, which others hold too, and the rest, which is the request's own.

    Behind its first own block all are copied: vLLM shares prefixes only.
    """
    used = list(table[: -(-num_tokens // block_size)])
    num_shared = next((i for i, block in enumerate(used) if block.ref_cnt == 1), len(used))
    return used[:num_shared], used[num_shared:]

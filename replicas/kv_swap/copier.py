"""Moves KV blocks between a worker's device and its host memory or directory, beside the forward pass. Worker's side.

The caller says what moves where; which blocks, slots and files are in use is its concern (`pool`). Nothing here raises
into the engine once it has started: a move that fails is reported, and the next one runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from replicas.kv_swap.directory import SwapDirectory
from replicas.kv_swap.file_moves import FileMoves
from replicas.kv_swap.lanes import Lane, Lanes, Touched
from replicas.kv_swap.moves import Bandwidths, Direction, MoveDone, Tier
from replicas.kv_swap.regions import Region, UnsupportedLayoutError, find_regions
from replicas.kv_swap.transfer import CpuTransfer, CudaTransfer, Rows, Transfer, device_rows, host_rows

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

MEASURED_BYTES = 64 * 2**20
"""A measurement moves so much, or less where there is less: 13 ms at 5 GB/s, 1.3 ms at 50 GB/s."""
MEASURED_ROUNDS = 3
COPY_NICENESS = 8
"""On the CPU, copying threads are so much nicer than the engine's: where cores are short, a copy gets a sixth of what
the forward pass gets. Measured on two cores with two to four times as many busy threads: a step beside copies took 1.1
times as long as one without, and 1.45 times without this."""
SHUTDOWN_S = 10.0
"""How long the end waits for a copy that runs, seconds: a file system that hangs must not hold the engine."""


@dataclass(frozen=True, slots=True)
class _Move:
    move_id: int
    tier: Tier
    direction: Direction
    num_bytes: int

    def done(self, seconds: float) -> MoveDone:
        return MoveDone(self.move_id, self.tier, self.direction, self.num_bytes, seconds, None)

    def failed(self, error: str) -> MoveDone:
        return MoveDone(self.move_id, self.tier, self.direction, self.num_bytes, 0.0, error)


class BlockCopier:
    """The copier of one worker. Called from the worker's main thread; `start_*` return at once.

    Moves that touch the same blocks, slots or file run in the order in which they were started; others may not. On the
    CPU all copies in memory share one thread, on CUDA each direction has its own; files never hold memory up.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        kv_caches: Mapping[str, Any],
        num_slots: int,
        directory: SwapDirectory | None = None,
        before_move: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            kv_caches: as vLLM registers them: layer name to tensor, or to a list of tensors.
            num_slots: host slots, one block each; on the CPU memory of a slot is used when it is first written.
            directory: where files go; owned by the copier from here on.
            before_move: called in the copying thread with the id of each move that begins; what it raises fails the
                move.

        Raises:
            UnsupportedLayoutError: the KV cache cannot be moved block by block.
            RuntimeError: the host memory cannot be had.
            ValueError: no slots.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots={num_slots}: swap.host_bytes has no room for one KV block in each worker")
        regions = find_regions(kv_cache_config)
        cache = _one_of(kv_cache_config, kv_caches)
        of_device = device_rows(cache.untyped_storage(), regions, cache.device)
        make = CudaTransfer if cache.is_cuda else CpuTransfer
        self._block_bytes = sum(region.block_bytes for region in regions)
        self._num_slots, self._num_blocks = num_slots, regions[0].num_blocks
        self._memory: Transfer = make(of_device, host_rows(regions, num_slots))
        self._files = None if directory is None else _file_moves(directory, make, of_device, regions)
        self._before_move = before_move
        self._ended: SimpleQueue[MoveDone] = SimpleQueue()
        self._num_in_flight = 0
        self._is_shut_down = False
        self._lanes = _start_lanes(cache)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this worker."""
        return self._block_bytes

    @property
    def num_in_flight(self) -> int:
        """Moves started and not yet returned by `poll`."""
        return self._num_in_flight

    def start_out(self, move_id: int, device_blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy blocks to slots, pair by pair. The blocks must not be written until the move is reported."""
        self._start_in_memory(move_id, Direction.OUT, device_blocks, host_slots)

    def start_in(self, move_id: int, host_slots: Sequence[int], device_blocks: Sequence[int]) -> None:
        """Copy slots to blocks, pair by pair. The blocks must not be read until the move is reported."""
        self._start_in_memory(move_id, Direction.IN, device_blocks, host_slots)

    def start_out_to_file(self, move_id: int, device_blocks: Sequence[int], file_id: int) -> None:
        """Copy blocks to a new file. The blocks must not be written until the move is reported."""
        self._start_file(move_id, Direction.OUT, file_id, device_blocks, 0)

    def start_in_from_file(
        self, move_id: int, file_id: int, device_blocks: Sequence[int], skip_blocks: int = 0
    ) -> None:
        """Copy a file's blocks to as many `device_blocks`, in the order in which they were written.

        The first `skip_blocks` of the file are left out, and so is what follows those asked for.
        """
        self._start_file(move_id, Direction.IN, file_id, device_blocks, skip_blocks)

    def drop_file(self, file_id: int) -> None:
        """Delete a file, after the moves that use it. Not reported; a file that is not there is no error.

        Its bytes count as used until then: where a step both drops and writes, drop first.
        """
        if self._files is not None and not self._is_shut_down:
            self._lanes.submit(Lane.FILE, Touched(file_id=file_id), partial(self._files.drop, file_id))

    def poll(self) -> list[MoveDone]:
        """The moves that have ended since the last call, in the order in which they ended. Never blocks."""
        ended = []
        while True:
            try:
                ended.append(self._ended.get_nowait())
            except Empty:
                self._num_in_flight -= len(ended)
                return ended

    def measure(self) -> Bandwidths:
        """The bandwidth of host memory: the median of three rounds. At start-up, before the first move; blocks.

        The blocks that it moves, it moves back. What is first touched costs more, and is not counted.
        """
        ids = range(self._num_measured())
        slots = ids[: self._num_slots]

        def move(direction: Direction) -> float:
            return self._memory.copy(direction, slots, slots, self._memory.mark())

        return _measured(move, len(slots) * self._block_bytes)

    def measure_directory(self) -> Bandwidths | None:
        """The same of the directory; None where there is none, or it fails, or has no room for one block."""
        if self._files is None or not self._files.num_free_blocks:
            return None
        files, blocks = self._files, range(min(self._num_measured(), self._files.num_free_blocks))

        def move(direction: Direction) -> float:
            if direction is Direction.OUT:
                files.drop(0)
            return files.move(direction, 0, blocks, 0, files.mark())

        try:
            return _measured(move, len(blocks) * self._block_bytes)
        except OSError:
            return None
        finally:
            files.drop(0)

    def shutdown(self) -> None:
        """End the copying threads and delete the files. Moves that have not begun never run. May be called twice."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._lanes.close(SHUTDOWN_S)
            if self._files is not None:
                self._files.close()

    def _num_measured(self) -> int:
        return max(1, min(self._num_blocks, MEASURED_BYTES // self._block_bytes))

    def _start_in_memory(
        self, move_id: int, direction: Direction, device_blocks: Sequence[int], host_slots: Sequence[int]
    ) -> None:
        lane = Lane.OUT if direction is Direction.OUT else Lane.IN
        touched = Touched(frozenset(device_blocks), frozenset(host_slots))
        copy = partial(self._memory.copy, direction, device_blocks, host_slots, self._memory.mark())
        self._submit(self._move(move_id, Tier.MEMORY, direction, device_blocks), lane, touched, copy)

    def _start_file(
        self, move_id: int, direction: Direction, file_id: int, device_blocks: Sequence[int], skip_blocks: int
    ) -> None:
        move = self._move(move_id, Tier.DIRECTORY, direction, device_blocks)
        if self._files is None:
            self._num_in_flight += 1
            self._ended.put(move.failed("no swap.directory is set"))
            return
        copy = partial(self._files.move, direction, file_id, device_blocks, skip_blocks, self._files.mark())
        self._submit(move, Lane.FILE, Touched(blocks=frozenset(device_blocks), file_id=file_id), copy)

    def _move(self, move_id: int, tier: Tier, direction: Direction, device_blocks: Sequence[int]) -> _Move:
        return _Move(move_id, tier, direction, len(device_blocks) * self._block_bytes)

    def _submit(self, move: _Move, lane: Lane, touched: Touched, copy: Callable[[], float]) -> None:
        self._num_in_flight += 1
        if self._is_shut_down:
            self._ended.put(move.failed("the copier is shut down"))
        else:
            self._lanes.submit(lane, touched, partial(self._run, move, copy))

    def _run(self, move: _Move, copy: Callable[[], float]) -> None:
        """In the lane's thread. Whatever a copy raises is its move's end, and nobody else's."""
        try:
            if self._before_move is not None:
                self._before_move(move.move_id)
            done = move.done(copy())
        except Exception as error:
            done = move.failed(f"{type(error).__name__}: {error}")
        self._ended.put(done)


def _one_of(kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, Any]) -> Any:
    """A layer's cache. All share one allocation, or this raises UnsupportedLayoutError."""
    names = [name for tensor in kv_cache_config.kv_cache_tensors for name in tensor.layers if name in kv_caches]
    if not names:
        raise UnsupportedLayoutError("no layer of the KV cache was registered")
    found = [kv_caches[name] for name in names]
    caches = [cache[0] if isinstance(cache, list | tuple) else cache for cache in found]
    if len({cache.untyped_storage().data_ptr() for cache in caches}) != 1:
        raise UnsupportedLayoutError("the layers' KV caches do not share one allocation")
    return caches[0]


def _start_lanes(cache: Any) -> Lanes:
    """On the CPU one thread copies in memory: a second one would take a core more from the forward pass."""
    if cache.is_cuda:
        threads = [frozenset({lane}) for lane in Lane]
        return Lanes(threads, partial(torch.cuda.set_device, cache.device))
    return Lanes([frozenset({Lane.OUT, Lane.IN}), frozenset({Lane.FILE})], _yield_to_the_forward_pass)


def _yield_to_the_forward_pass() -> None:
    """The calling thread's priority, as the kernel sees it, below that of the thread that computes."""
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread) + COPY_NICENESS
    with suppress(OSError):  # a container that forbids it copies all the same
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _file_moves(
    directory: SwapDirectory, make: Callable[[Rows, Rows], Transfer], of_device: Rows, regions: Sequence[Region]
) -> FileMoves:
    block_bytes = sum(region.block_bytes for region in regions)
    staging = host_rows(regions, FileMoves.num_staged(block_bytes))
    return FileMoves(directory, make(of_device, staging), block_bytes)


def _measured(move: Callable[[Direction], float], num_bytes: int) -> Bandwidths:
    rounds = [[move(direction) for direction in Direction] for _ in range(1 + MEASURED_ROUNDS)]
    out_s, in_s = (max(median(times[1:]), 1e-9) for times in zip(*rounds, strict=True))
    return Bandwidths(num_bytes / out_s, num_bytes / in_s)

"""Moves between device blocks and files, a chunk at a time through a small piece of host memory. Worker's side.

Bytes reach the device only after their chunk has been found to be what was written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from replicas.kv_swap.directory import FileShape, SwapDirectory, blocks_within
from replicas.kv_swap.moves import Direction
from replicas.kv_swap.transfer import Transfer


class FileMoves:
    """The files of one worker. Used by one thread at a time, but for `mark`."""

    def __init__(self, directory: SwapDirectory, staging: Transfer, block_bytes: int) -> None:
        """`staging` has `num_staged` slots."""
        self._directory = directory
        self._staging = staging
        self._block_bytes = block_bytes

    @staticmethod
    def num_staged(block_bytes: int) -> int:
        """Slots that a chunk passes through."""
        return FileShape(0, 0, block_bytes).chunk_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks for which there is room, in one file."""
        return blocks_within(self._directory.free_bytes, self._block_bytes)

    def mark(self) -> Any:
        """As in `Transfer`."""
        return self._staging.mark()

    def move(
        self, direction: Direction, file_id: int, device_blocks: Sequence[int], skip_blocks: int, after: Any
    ) -> float:
        """Writes a new file, or reads one from block `skip_blocks` on; the seconds that it took.

        Raises:
            OSError: the file system refuses, or the file is damaged.
            ValueError: the file has not as many blocks, or a device block does not exist.
        """
        start_s = time.perf_counter()
        if direction is Direction.OUT:
            self._write(FileShape(file_id, len(device_blocks), self._block_bytes), device_blocks, after)
        else:
            self._read(file_id, device_blocks, skip_blocks, after)
        return time.perf_counter() - start_s

    def drop(self, file_id: int) -> None:
        """Delete a file. Where the file system refuses, it is left to the end of the worker."""
        with suppress(OSError):
            self._directory.drop(file_id)

    def close(self) -> None:
        """Delete all files."""
        self._directory.close()

    def _write(self, shape: FileShape, device_blocks: Sequence[int], after: Any) -> None:
        with self._directory.create(shape) as file:
            for first in range(0, len(device_blocks), shape.chunk_blocks):
                blocks = device_blocks[first : first + shape.chunk_blocks]
                self._staging.copy(Direction.OUT, blocks, range(len(blocks)), after)
                file.write_chunk(self._staged(len(blocks)))

    def _read(self, file_id: int, device_blocks: Sequence[int], skip_blocks: int, after: Any) -> None:
        shape = self._directory.shape_of(file_id)
        end = skip_blocks + len(device_blocks)
        if not 0 <= skip_blocks <= end <= shape.num_blocks:
            raise ValueError(f"blocks {skip_blocks}..{end} of a file of {shape.num_blocks}")
        with self._directory.open(file_id) as file:
            for chunk in range(skip_blocks // shape.chunk_blocks, -(-end // shape.chunk_blocks)):
                chunk_first = chunk * shape.chunk_blocks
                chunk_end = min(chunk_first + shape.chunk_blocks, shape.num_blocks)
                file.read_chunk(chunk, self._staged(chunk_end - chunk_first))
                first, last = max(chunk_first, skip_blocks), min(chunk_end, end)
                blocks = device_blocks[first - skip_blocks : last - skip_blocks]
                self._staging.copy(Direction.IN, blocks, range(first - chunk_first, last - chunk_first), after)

    def _staged(self, num_slots: int) -> list[memoryview]:
        return [memoryview(rows[:num_slots].numpy()).cast("B") for rows in self._staging.host_rows]

"""Copies of blocks between a worker's KV cache and host memory: what a device can do, behind one interface.

A transfer belongs to one piece of host memory. It is used by one thread for each direction, never by the engine's own,
but for `mark`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from replicas.kv_swap.moves import Direction
from replicas.kv_swap.regions import Region, UnsupportedLayoutError

Rows = tuple[torch.Tensor, ...]
"""For each region, its blocks (or slots) as rows of bytes."""
Bytes2D = npt.NDArray[np.uint8]

PIECE_BYTES = 2**19
"""The CPU copies so much at a time, bytes: it fits into the cache of a core, and takes Python's lock but twice."""
BUSY_SHARE = 0.5
"""Of the time, the CPU copies so much and then rests, for the forward pass, which needs the same memory and the same
cores. Measured on two busy cores, a step beside copies: 1.1 times as long as one without, 1.2 times with 1.0 here."""
REST_S = 5e-4
"""Rests are saved up to this, seconds: shorter ones are not slept exactly."""


class Transfer(Protocol):
    """Copies between the device and one piece of host memory."""

    host_rows: Rows

    def mark(self) -> Any:
        """The device's work so far, for `copy` to wait for. Called in the engine's thread; waits for nothing."""

    def copy(self, direction: Direction, device_blocks: Sequence[int], slots: Sequence[int], after: Any) -> float:
        """Copies pair by pair, waits until it is done, and returns the seconds that the copy itself took.

        Raises:
            ValueError: a block or a slot does not exist, or the two are not equally many.
            RuntimeError: the device refuses.
        """


def device_rows(storage: Any, regions: Sequence[Region], device: Any) -> Rows:
    """The regions of a worker's KV cache, as rows of bytes that share its memory.

    Raises:
        UnsupportedLayoutError: the memory is smaller than the regions.
    """
    raw = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    if raw.numel() < regions[-1].end:
        raise UnsupportedLayoutError(f"{regions[-1]} ends beyond the KV cache's {raw.numel()} bytes")
    return tuple(raw[r.start : r.end].view(r.num_blocks, r.block_bytes) for r in regions)


def host_rows(regions: Sequence[Region], num_slots: int) -> Rows:
    """Host memory for so many blocks, in one allocation. The system provides a page when it is first written.

    Raises:
        RuntimeError: the memory cannot be had.
    """
    sizes = [num_slots * region.block_bytes for region in regions]
    parts = torch.empty(sum(sizes), dtype=torch.uint8).split(sizes)
    return tuple(part.view(num_slots, r.block_bytes) for part, r in zip(parts, regions, strict=True))


def check_pairs(device_blocks: Sequence[int], num_blocks: int, slots: Sequence[int], num_slots: int) -> None:
    """Raises ValueError for pairs that would read or write memory that is not theirs."""
    if len(device_blocks) != len(slots):
        raise ValueError(f"{len(device_blocks)} blocks for {len(slots)} slots")
    for ids, what, number in ((device_blocks, "block", num_blocks), (slots, "slot", num_slots)):
        if len(ids) and not (min(ids) >= 0 and max(ids) < number):
            raise ValueError(f"a {what} is outside 0..{number - 1}: {min(ids)}..{max(ids)}")


class CpuTransfer:
    """The CPU backend, whose device is host memory too.

    NumPy copies on the calling thread alone and without Python's lock; torch would start further threads, which take
    the cores from the forward pass.
    """

    def __init__(self, of_device: Rows, of_host: Rows) -> None:
        self.host_rows = of_host
        self._device = [rows.numpy() for rows in of_device]
        self._host = [rows.numpy() for rows in of_host]
        self._piece = np.empty(max(PIECE_BYTES, *(rows.shape[1] for rows in self._device)), dtype=np.uint8)

    def mark(self) -> None:
        """A step has ended when the engine's thread is back."""

    def copy(self, direction: Direction, device_blocks: Sequence[int], slots: Sequence[int], after: None) -> float:  # noqa: ARG002
        check_pairs(device_blocks, len(self._device[0]), slots, len(self._host[0]))
        start_s = time.perf_counter()
        blocks_at, slots_at = np.asarray(device_blocks, dtype=np.intp), np.asarray(slots, dtype=np.intp)
        pacing = _Pacing()
        for device, host in zip(self._device, self._host, strict=True):
            if direction is Direction.OUT:
                self._copy_rows(device, blocks_at, host, slots_at, pacing)
            else:
                self._copy_rows(host, slots_at, device, blocks_at, pacing)
        return time.perf_counter() - start_s

    def _copy_rows(
        self,
        source: Bytes2D,
        source_at: npt.NDArray[np.intp],
        target: Bytes2D,
        target_at: npt.NDArray[np.intp],
        pacing: _Pacing,
    ) -> None:
        row_bytes = source.shape[1]
        num_rows = max(1, len(self._piece) // row_bytes)
        for first in range(0, len(source_at), num_rows):
            rows = source_at[first : first + num_rows]
            piece = self._piece[: len(rows) * row_bytes].reshape(len(rows), row_bytes)
            source.take(rows, axis=0, out=piece, mode="clip")  # "raise" would copy once more; the rows were checked
            target[target_at[first : first + num_rows]] = piece
            pacing.rest()


class _Pacing:
    """Rests in proportion to the work since the last rest."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()
        self._owed_s = 0.0

    def rest(self) -> None:
        now_s = time.perf_counter()
        self._owed_s += (now_s - self._since_s) * (1 - BUSY_SHARE) / BUSY_SHARE
        self._since_s = now_s
        if self._owed_s >= REST_S:
            time.sleep(self._owed_s)
            self._since_s = time.perf_counter()
            self._owed_s -= self._since_s - now_s


class CudaTransfer:
    """CUDA: page-locked host memory, and a stream for each direction, which the compute stream never waits for."""

    def __init__(self, of_device: Rows, of_host: Rows) -> None:
        """
        Raises:
            RuntimeError: the host memory cannot be page-locked.
        """
        from vllm.utils.torch_utils import PIN_MEMORY
        from vllm.v1.simple_kv_offload import cuda_mem_ops

        self.host_rows = of_host
        self._device = of_device[0].device
        self._num_blocks, self._num_slots = len(of_device[0]), len(of_host[0])
        if PIN_MEMORY:
            _pin(of_host)
        device, host = _by_name(of_device), _by_name(of_host)
        low, _ = torch.cuda.Stream.priority_range()
        self._streams = {d: torch.cuda.Stream(self._device, priority=low) for d in Direction}
        build = cuda_mem_ops.build_params
        in_order, at_any_time = (
            cuda_mem_ops.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            cuda_mem_ops.CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
        )
        self._params = {
            Direction.OUT: build(device, host, self._streams[Direction.OUT], in_order),
            Direction.IN: build(host, device, self._streams[Direction.IN], at_any_time),
        }
        self._copy_blocks = cuda_mem_ops.copy_blocks

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy(self, direction: Direction, device_blocks: Sequence[int], slots: Sequence[int], after: Any) -> float:
        check_pairs(device_blocks, self._num_blocks, slots, self._num_slots)
        stream = self._streams[direction]
        source, target = (device_blocks, slots) if direction is Direction.OUT else (slots, device_blocks)
        begun, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        stream.wait_event(after)
        begun.record(stream)
        try:
            self._copy_blocks(list(source), list(target), self._params[direction])
        finally:  # whatever was launched still reads and writes
            ended.record(stream)
            ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


def _pin(rows: Rows) -> None:
    from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor

    whole = torch.empty(0, dtype=torch.uint8).set_(rows[0].untyped_storage())
    try:
        pin_tensor(whole)
    except RuntimeError as error:
        raise RuntimeError(f"cannot page-lock {whole.nbytes} bytes of host memory: lower swap.host_bytes") from error


def _by_name(rows: Rows) -> dict[str, torch.Tensor]:
    return {str(index): region for index, region in enumerate(rows)}

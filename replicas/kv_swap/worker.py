"""The worker's side of KV swap: starts the moves of a step, and reports those that have ended.

Owns what is on its way in this worker, and nothing of what moves where: the scheduler's side said so. A failed load is
reported by its blocks, as vLLM wants it, so that the request is computed again and never reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from replicas.kv_swap.metadata import HostSlots, InMove, OutMove, SwapMoves, SwapReport
from replicas.kv_swap.moves import Bandwidths, Direction, MoveDone, Tier


class Copier(Protocol):
    """What moves the bytes, see `replicas.kv_swap.copier.BlockCopier`."""

    def start_out(self, move_id: int, device_blocks: Sequence[int], host_slots: Sequence[int]) -> None: ...
    def start_in(self, move_id: int, host_slots: Sequence[int], device_blocks: Sequence[int]) -> None: ...
    def start_out_to_file(self, move_id: int, device_blocks: Sequence[int], file_id: int) -> None: ...
    def start_in_from_file(
        self, move_id: int, file_id: int, device_blocks: Sequence[int], skip_blocks: int = 0
    ) -> None: ...
    def drop_file(self, file_id: int) -> None: ...
    def poll(self) -> list[MoveDone]: ...
    def shutdown(self) -> None: ...


class SwapWorker:
    """One worker's moves. Called by the model runner in the worker's main thread; no call waits for a copy."""

    def __init__(self, copier: Copier, bandwidths: Mapping[Tier, Bandwidths]) -> None:
        """`bandwidths`: as measured before; they go out with the first report."""
        self._copier = copier
        self._report = SwapReport(bandwidths=dict(bandwidths))
        self._loads: dict[int, InMove] = {}
        self._loaded: set[str] = set()
        self._unloaded_blocks: set[int] = set()

    def start(self, moves: SwapMoves) -> None:
        """Start a step's moves, before its forward pass. Idempotence: each metadata object comes once.

        A file is dropped behind the load that reads it last, and before a new one needs its bytes.
        """
        for load in moves.ins:
            self._loads[load.move_id] = load
            self._start_in(load)
        for file_id in moves.dropped_files:
            self._copier.drop_file(file_id)
        for out in moves.outs:
            self._start_out(out)

    def poll(self) -> None:
        """Collect what has ended. Each of the `take_*` below hands it out once."""
        for done in self._copier.poll():
            self._report.done.append(done)
            if done.direction is Direction.IN:
                load = self._loads.pop(done.move_id)
                self._loaded.add(load.request_id)
                if done.error is not None:
                    self._unloaded_blocks.update(load.device_blocks)

    def take_loaded(self) -> set[str]:
        """Requests whose load has ended, well or not."""
        loaded, self._loaded = self._loaded, set()
        return loaded

    def take_unloaded_blocks(self) -> set[int]:
        """Device blocks that were to be loaded and hold nothing of use."""
        blocks, self._unloaded_blocks = self._unloaded_blocks, set()
        return blocks

    def take_report(self) -> SwapReport | None:
        """For the scheduler's side; None when there is nothing to tell."""
        report, self._report = self._report, SwapReport()
        return report if report.done or report.bandwidths else None

    def shutdown(self) -> None:
        self._copier.shutdown()

    def _start_out(self, out: OutMove) -> None:
        if isinstance(out.place, HostSlots):
            self._copier.start_out(out.move_id, out.device_blocks, out.place.slots)
        else:
            self._copier.start_out_to_file(out.move_id, out.device_blocks, out.place.file_id)

    def _start_in(self, load: InMove) -> None:
        place = load.place
        if isinstance(place, HostSlots):
            self._copier.start_in(load.move_id, place.slots, load.device_blocks)
        else:
            self._copier.start_in_from_file(load.move_id, place.file_id, load.device_blocks, place.skip_blocks)

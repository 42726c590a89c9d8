"""KV that moves between a simulated device and its host: the worker's side of swap, with copies that take time alone.

One lane in each direction: copies in one direction follow each other, those in the other pass them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

from replicas.kv_swap.moves import Bandwidths, Direction, MoveDone, Tier
from replicas.kv_swap.worker import SwapWorker

SETUP_S = 0.0002
"""Starting a copy of scattered blocks. Source: some tenths of a millisecond, see `replicas.kv_swap.cost`."""


@dataclass(slots=True)
class TimedCopier:
    """A `replicas.kv_swap.worker.Copier` on a virtual clock: `now_s` is set by who drives it."""

    block_bytes: int
    bandwidths: Bandwidths
    now_s: float = 0.0
    _free_s: dict[Direction, float] = field(default_factory=lambda: dict.fromkeys(Direction, 0.0))
    _moves: list[tuple[float, MoveDone]] = field(default_factory=list)

    def start_out(self, move_id: int, device_blocks: Sequence[int], host_slots: Sequence[int]) -> None:  # noqa: ARG002
        self._start(move_id, len(device_blocks), Tier.MEMORY, Direction.OUT)

    def start_in(self, move_id: int, host_slots: Sequence[int], device_blocks: Sequence[int]) -> None:  # noqa: ARG002
        self._start(move_id, len(device_blocks), Tier.MEMORY, Direction.IN)

    def start_out_to_file(self, move_id: int, device_blocks: Sequence[int], file_id: int) -> None:
        raise NotImplementedError("no directory is simulated")

    def start_in_from_file(
        self, move_id: int, file_id: int, device_blocks: Sequence[int], skip_blocks: int = 0
    ) -> None:
        raise NotImplementedError("no directory is simulated")

    def drop_file(self, file_id: int) -> None:
        raise NotImplementedError("no directory is simulated")

    def poll(self) -> list[MoveDone]:
        """Those that have ended by `now_s`, in order."""
        done = [move for end_s, move in self._moves if end_s <= self.now_s]
        self._moves = [(end_s, move) for end_s, move in self._moves if end_s > self.now_s]
        return done

    def shutdown(self) -> None:
        self._moves.clear()

    def _start(self, move_id: int, num_blocks: int, tier: Tier, direction: Direction) -> None:
        num_bytes = num_blocks * self.block_bytes
        took_s = SETUP_S + num_bytes / self.bandwidths.of(direction)
        end_s = max(self._free_s[direction], self.now_s) + took_s
        self._free_s[direction] = end_s
        self._moves.append((end_s, MoveDone(move_id, tier, direction, num_bytes, took_s, None)))


class SwapSide:
    """What an engine's worker does for swap around a step, as vLLM's model runner calls it."""

    def __init__(self, block_bytes: int, bandwidths: Bandwidths) -> None:
        self._copier = TimedCopier(block_bytes, bandwidths)
        self._worker = SwapWorker(self._copier, {Tier.MEMORY: bandwidths})

    def begin(self, output: SchedulerOutput, at_s: float) -> None:
        """The step of `output` is launched."""
        self._copier.now_s = at_s
        self._worker.start(output.kv_connector_metadata)

    def end(self, at_s: float) -> KVConnectorOutput:
        """A step has ended: what is told with it."""
        self._copier.now_s = at_s
        self._worker.poll()
        return KVConnectorOutput(
            finished_recving=self._worker.take_loaded() or None,
            invalid_block_ids=self._worker.take_unloaded_blocks(),
            kv_connector_worker_meta=self._worker.take_report(),
        )

"""The workers' side of KV swap over symbolic KV: the real connector and `SwapWorker`, a copier that takes steps.

A copy may read its source and write its destination at any moment until it is reported. So the destination is poisoned
when a move begins, and filled from what the source holds when the move ends; a source that changed meanwhile fails at
once. Moves that touch the same blocks or slots end in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from replicas.kv_swap.connector import SwapConnector
from replicas.kv_swap.moves import Bandwidths, Direction, MoveDone, Tier
from replicas.kv_swap.worker import SwapWorker

POISON = -7
BLOCK_BYTES = 1000
RATE = Bandwidths(1e9, 1e9)


@dataclass(slots=True)
class _Move:
    move_id: int
    tier: Tier
    direction: Direction
    source: np.ndarray
    """A view of where the bytes come from, as it was when the move began."""
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]
    touches: frozenset[tuple[str, int]]
    steps_left: int
    fails: bool


@dataclass(slots=True)
class SymbolicCopier:
    """`kv`: this rank's KV, (blocks, block size). `delay_of` and `fails` are asked once a move, with its id."""

    kv: np.ndarray
    delay_of: Callable[[int], int] = lambda _: 0
    fails: Callable[[int], bool] = lambda _: False
    host: dict[int, np.ndarray] = field(default_factory=dict)
    files: dict[int, np.ndarray] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    moves: list[_Move] = field(default_factory=list)
    num_done: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))

    def start_out(self, move_id: int, device_blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        blocks, slots = list(device_blocks), list(host_slots)
        self._set_host(slots, np.full((len(slots), self.kv.shape[1]), POISON))
        self._add(
            move_id,
            Tier.MEMORY,
            Direction.OUT,
            lambda: self.kv[blocks],
            lambda content: self._set_host(slots, content),
            blocks,
            [("slot", s) for s in slots],
        )

    def start_in(self, move_id: int, host_slots: Sequence[int], device_blocks: Sequence[int]) -> None:
        blocks, slots = list(device_blocks), list(host_slots)
        self._add(
            move_id,
            Tier.MEMORY,
            Direction.IN,
            lambda: np.array([self.host[s] for s in slots]),
            lambda content: self._set_kv(blocks, content),
            blocks,
            [("slot", s) for s in slots],
        )
        self._set_kv(blocks, POISON)

    def start_out_to_file(self, move_id: int, device_blocks: Sequence[int], file_id: int) -> None:
        blocks = list(device_blocks)
        assert file_id not in self.files, f"file {file_id} is written twice"
        self.files[file_id] = np.full((len(blocks), self.kv.shape[1]), POISON)
        self._add(
            move_id,
            Tier.DIRECTORY,
            Direction.OUT,
            lambda: self.kv[blocks],
            lambda content: self.files.__setitem__(file_id, content),
            blocks,
            [("file", file_id)],
        )

    def start_in_from_file(
        self, move_id: int, file_id: int, device_blocks: Sequence[int], skip_blocks: int = 0
    ) -> None:
        blocks = list(device_blocks)
        last = skip_blocks + len(blocks)
        self._add(
            move_id,
            Tier.DIRECTORY,
            Direction.IN,
            lambda: self.files[file_id][skip_blocks:last],
            lambda content: self._set_kv(blocks, content),
            blocks,
            [("file", file_id)],
        )
        self._set_kv(blocks, POISON)

    def drop_file(self, file_id: int) -> None:
        self.dropped.add(file_id)

    def poll(self) -> list[MoveDone]:
        done: list[MoveDone] = []
        waiting: list[_Move] = []
        busy: set[tuple[str, int]] = set()
        for move in self.moves:
            if move.steps_left > 0 or move.touches & busy:
                move.steps_left -= 1
                waiting.append(move)
                busy |= move.touches
            else:
                done.append(self._end(move))
        self.moves = waiting
        for file_id in [f for f in self.dropped if ("file", f) not in busy]:
            self.files.pop(file_id, None)
            self.dropped.discard(file_id)
        return done

    def shutdown(self) -> None:
        self.moves.clear()

    def _add(
        self,
        move_id: int,
        tier: Tier,
        direction: Direction,
        read: Callable[[], np.ndarray],
        write: Callable[[np.ndarray], None],
        blocks: list[int],
        places: list[tuple[str, int]],
    ) -> None:
        touches = frozenset([("block", b) for b in blocks] + places)
        steps, fails = self.delay_of(move_id), self.fails(move_id)
        self.moves.append(_Move(move_id, tier, direction, read().copy(), read, write, touches, steps, fails))

    def _end(self, move: _Move) -> MoveDone:
        content = move.read()
        num_bytes = BLOCK_BYTES * len(content)
        if move.fails:
            return MoveDone(move.move_id, move.tier, move.direction, 0, 0.0, "made to fail")
        if move.direction is Direction.OUT and not self.may_change:
            assert np.array_equal(content, move.source), f"move {move.move_id}: its source was written meanwhile"
        move.write(content)
        self.num_done[move.direction] += 1
        return MoveDone(move.move_id, move.tier, move.direction, num_bytes, num_bytes / RATE.out_bytes_per_s, None)

    may_change: bool = False
    """After a reset of the prefix cache blocks may be reused while they are copied: nobody reads that copy."""

    def _set_host(self, slots: list[int], content: np.ndarray) -> None:
        self.host.update(zip(slots, content, strict=True))

    def _set_kv(self, blocks: list[int], content: np.ndarray | int) -> None:
        self.kv[blocks] = content


class SwapRanks:
    """All ranks' worker sides, called as vLLM's model runners call them, and their outputs put together as it does."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, kv: np.ndarray) -> None:
        """`kv`: (ranks, blocks, block size)."""
        self.copiers = [SymbolicCopier(of_rank) for of_rank in kv]
        self.connectors = []
        for copier in self.copiers:
            connector = SwapConnector(vllm_config, KVConnectorRole.WORKER, kv_cache_config)
            connector._worker = SwapWorker(copier, {Tier.MEMORY: RATE, Tier.DIRECTORY: RATE})
            self.connectors.append(connector)
        self._aggregator = KVOutputAggregator(len(self.copiers))

    def before_forward(self, output: SchedulerOutput) -> None:
        for connector in self.connectors:
            connector.handle_preemptions(output.kv_connector_metadata)
            connector.bind_connector_metadata(output.kv_connector_metadata)

    def after_forward(self, output: SchedulerOutput, computed: ModelRunnerOutput) -> ModelRunnerOutput:
        outputs = []
        for connector in self.connectors:
            connector.start_load_kv(None)
            connector.wait_for_save()
            results = connector.get_transfer_results(output.finished_req_ids)
            said = KVConnectorOutput(
                finished_recving=results.finished_recving,
                failed_recving=results.failed_recving,
                invalid_block_ids=connector.get_block_ids_with_load_errors(),
                kv_connector_worker_meta=connector.build_connector_worker_meta(),
            )
            connector.clear_connector_metadata()
            outputs.append(ModelRunnerOutput([], {}, kv_connector_output=said))
        computed.kv_connector_output = self._aggregator.aggregate(outputs).kv_connector_output
        return computed

"""What the replica knows of its engine: the latest that the engine's scheduler told, and when the engine last spoke.

Owns the snapshot's identity and age. All totals come whole from the scheduler, so nothing is added up here, and one
that is lost loses nothing. Knows no vLLM: `replicas.stat_loggers` is what vLLM calls.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from slo.priority import PriorityClass
from slo.snapshots import ClassLoad, EngineSnapshot, GpuUse, KVUse

STEP_WEIGHT = 0.1
"""Of the latest step in the moving average: about ten steps count."""


class EngineStatistics:
    """One engine's. Used on the replica's event loop only.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._source_id = uuid.uuid4().hex
        self._latest: EngineSnapshot | None = None
        self._heard_s = clock()
        self._num_heard = 0
        self._step_s: float | None = None

    def begin(self, max_num_seqs: int, num_blocks: int) -> None:
        """The engine is there; it has done nothing yet.

        Raises:
            ValueError: a second engine begins in this replica.
        """
        if self._latest is not None:
            raise ValueError("data_parallel_size must be 1: a replica is one engine; set replicas.num_replicas instead")
        self._latest = EngineSnapshot(
            source_id=self._source_id,
            age_s=0.0,
            classes={priority: ClassLoad() for priority in PriorityClass},
            max_num_seqs=max_num_seqs,
            kv=KVUse(num_blocks, num_used_blocks=0, num_allocated_slots=0, num_filled_slots=0),
        )
        self._heard_s = self._clock()

    def note_heard(self, told: EngineSnapshot | None) -> None:
        """The engine has said something, and perhaps told about itself."""
        now_s = self._clock()
        step_s, self._heard_s = now_s - self._heard_s, now_s
        self._num_heard += 1
        self._step_s = step_s if self._step_s is None else self._step_s + (step_s - self._step_s) * STEP_WEIGHT
        if told is not None:
            self._latest = told

    @property
    def num_heard(self) -> int:
        """How often the engine has said something: the watchdog looks whether it grows."""
        return self._num_heard

    @property
    def step_s(self) -> float | None:
        """How long the engine's steps take, seconds: the moving average of the time between words; None before one."""
        return self._step_s

    def note_idle(self) -> None:
        """The engine has no request: it is silent, and nothing is wrong with that. Also called just before one comes,
        so that its age counts from then on."""
        self._heard_s = self._clock()

    def snapshot(self, gpus: tuple[GpuUse, ...]) -> EngineSnapshot:
        """The latest, with its age: since the engine last spoke, or was last known to be idle."""
        if self._latest is None:
            raise AssertionError("the engine has not begun")
        return replace(self._latest, source_id=self._source_id, age_s=self._clock() - self._heard_s, gpus=gpus)

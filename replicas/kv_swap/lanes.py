"""Background threads for moves, one a lane: each runs its moves in the order in which they came.

Lanes run beside each other, so that a slow file holds no copy in memory up. A move that touches what an earlier one of
another lane touches waits for that one. Every wait is for an earlier move, so the earliest that has not ended can
always run. Knows neither torch nor what a move does; refuses to run a move that raises: the caller catches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue


class Lane(StrEnum):
    """What a lane carries."""

    OUT = "out"
    IN = "in"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Touched:
    """What a move reads or writes."""

    blocks: frozenset[int] = frozenset()
    slots: frozenset[int] = frozenset()
    file_id: int | None = None

    def meets(self, other: Touched) -> bool:
        """Whether both touch the same thing."""
        return (
            not self.blocks.isdisjoint(other.blocks)
            or not self.slots.isdisjoint(other.slots)
            or (self.file_id is not None and self.file_id == other.file_id)
        )


@dataclass(frozen=True, slots=True)
class _Job:
    touched: Touched
    run: Callable[[], None]
    waits_for: tuple[threading.Event, ...]
    ended: threading.Event = field(default_factory=threading.Event)


class Lanes:
    """The threads. `submit` and `close` are called from one thread."""

    def __init__(self, threads: Iterable[frozenset[Lane]], prepare: Callable[[], None]) -> None:
        """
        Args:
            threads: which lanes each thread carries; every lane has one thread.
            prepare: called first in each thread.
        """
        self._is_closed = False
        self._jobs: list[_Job] = []
        self._queues: dict[Lane, SimpleQueue[_Job | None]] = {}
        self._threads: list[tuple[threading.Thread, SimpleQueue[_Job | None]]] = []
        for lanes in threads:
            queue: SimpleQueue[_Job | None] = SimpleQueue()
            self._queues.update(dict.fromkeys(lanes, queue))
            name = f"kv-swap-{'-'.join(sorted(lanes))}"
            thread = threading.Thread(target=self._run, args=(queue, prepare), name=name, daemon=True)
            self._threads.append((thread, queue))
        for thread, _ in self._threads:
            thread.start()

    def submit(self, lane: Lane, touched: Touched, run: Callable[[], None]) -> None:
        """Run `run` in its lane, after all earlier ones that touch the same; it must not raise."""
        self._jobs = [job for job in self._jobs if not job.ended.is_set()]
        job = _Job(touched, run, tuple(job.ended for job in self._jobs if touched.meets(job.touched)))
        self._jobs.append(job)
        self._queues[lane].put(job)

    def close(self, timeout_s: float) -> bool:
        """Let the moves that run end, and no further one begin. Whether all threads ended in time."""
        self._is_closed = True
        for _, queue in self._threads:
            queue.put(None)
        for thread, _ in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread, _ in self._threads)

    def _run(self, queue: SimpleQueue[_Job | None], prepare: Callable[[], None]) -> None:
        prepare()
        while (job := queue.get()) is not None:
            for earlier in job.waits_for:
                earlier.wait()
            try:
                if not self._is_closed:
                    job.run()
            finally:
                job.ended.set()

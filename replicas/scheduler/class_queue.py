"""The waiting queue: class by class, and inside a class by arrival, some of it delayed.

Owns the order of the requests that wait, and nothing else: who may run, and what has to yield for it, is decided in
`policy`. It keeps the key a request had when it was added, so a request that changes while it waits (a streaming
session gets a new arrival time) cannot break the heap; it is ordered anew the next time it is added.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from slo.messages import DELAY_ARGUMENT, MAX_DELAY_S
from slo.priority import PriorityClass

Entry: TypeAlias = tuple[int, float, str, Request]
"""Class level, arrival time with its delay, request id (which breaks ties, and is unique), request."""


def _always_open() -> bool:
    return True


class ClassQueue(RequestQueue):
    """A heap with lazy removal: add and pop cost O(log n) amortized, peek O(1), removal of one request O(1) amortized.

    `is_open` is asked only when the queue holds something. While it says no the queue calls itself empty in a boolean
    context, and in no other: vLLM asks `if queue` before it takes a request, and `len(queue)` to count work left.
    """

    def __init__(self, is_open: Callable[[], bool] = _always_open) -> None:
        self._heap: list[Entry] = []
        self._live: dict[str, Entry] = {}
        self._is_open = is_open

    def add_request(self, request: Request) -> None:
        level = PriorityClass.from_level(request.priority).level
        entry = (level, request.arrival_time + delay_s_of(request), request.request_id, request)
        if request.request_id in self._live:
            self.remove_requests((request,))
        self._live[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def pop_request(self) -> Request:
        if not self._live:
            raise IndexError("pop from an empty queue")
        _, _, request_id, request = heapq.heappop(self._heap)
        del self._live[request_id]
        self._tidy()
        return request

    def peek_request(self) -> Request:
        if not self._live:
            raise IndexError("peek from an empty queue")
        return self._heap[0][3]

    def prepend_request(self, request: Request) -> None:
        """As `add_request`: a class queue has no front of its own, the request takes its place by arrival."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        if request.request_id not in self._live:
            raise ValueError(f"request {request.request_id} is not in the queue")
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Requests that are not in the queue are passed over, as in vLLM's own queues."""
        for request in requests:
            self._live.pop(request.request_id, None)
        self._tidy()

    def __bool__(self) -> bool:
        return bool(self._live) and self._is_open()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._live

    def __iter__(self) -> Iterator[Request]:
        """In order, lazily: the first k requests of n cost O(k log k). The queue must not change meanwhile."""
        heap, frontier = self._heap, [(self._heap[0], 0)] if self._heap else []
        while frontier:
            entry, index = heapq.heappop(frontier)
            if self._live.get(entry[2]) is entry:
                yield entry[3]
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))

    def check_invariants(self) -> None:
        """For tests: every live request is in the heap once, the head is alive, and the dead do not pile up."""
        alive = [entry for entry in self._heap if self._live.get(entry[2]) is entry]
        assert len(alive) == len(self._live), f"{len(alive)} live entries in the heap, {len(self._live)} requests"
        assert not self._heap or self._heap[0] is self._live.get(self._heap[0][2]), "the head was removed"
        assert len(self._heap) <= 2 * len(self._live) + 1, f"{len(self._heap)} entries for {len(self._live)} requests"
        assert all(request_id == entry[2] for request_id, entry in self._live.items())

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._live) + 1:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)
        while self._heap and self._live.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)


def delay_s_of(request: Request) -> float:
    """How much later than it came it counts as having come; 0 where that is not told, or no number."""
    arguments = request.sampling_params.extra_args if request.sampling_params else None
    delay_s = arguments.get(DELAY_ARGUMENT) if arguments else None
    if isinstance(delay_s, (int, float)) and delay_s > 0:  # not so of NaN, which would break the heap
        return min(float(delay_s), MAX_DELAY_S)
    return 0.0

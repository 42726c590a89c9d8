"""The waiting queue against a sorted list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.request import Request

from replicas.scheduler.class_queue import ClassQueue, delay_s_of
from slo.messages import DELAY_ARGUMENT


def _request(request_id: str, priority: int = 2, arrival_s: float = 0.0, delay_s: Any = None) -> Request:
    sampling = SamplingParams(max_tokens=1, extra_args=None if delay_s is None else {DELAY_ARGUMENT: delay_s})
    return Request(request_id, [1], sampling, pooling_params=None, arrival_time=arrival_s, priority=priority)


def _ids(queue: ClassQueue) -> list[str]:
    return [r.request_id for r in queue]


def test_class_queue_orders_by_class_then_by_arrival() -> None:
    queue = ClassQueue()
    for request in (_request("c", 2, 0.0), _request("b", 1, 1.0), _request("a2", 0, 3.0), _request("a1", 0, 2.0)):
        queue.add_request(request)
    assert _ids(queue) == ["a1", "a2", "b", "c"]
    assert [queue.pop_request().request_id for _ in range(4)] == ["a1", "a2", "b", "c"]


def test_class_queue_orders_a_class_by_arrival_and_delay() -> None:
    queue = ClassQueue()
    for request in (
        _request("third", 1, 1.0, delay_s=0.9),
        _request("first", 1, 1.2),
        _request("second", 1, 1.3, delay_s=0.25),
        _request("fourth", 1, 1.95),  # none is passed for longer than its delay
        _request("batch", 2, 0.0),
        _request("urgent", 0, 4.0, delay_s=1),
    ):
        queue.add_request(request)
    queue.check_invariants()
    assert _ids(queue) == ["urgent", "first", "second", "third", "fourth", "batch"]


@pytest.mark.parametrize("delay_s", ["5", [1], -9, -9.5, float("nan")])
def test_class_queue_takes_what_is_no_delay_for_none(delay_s: Any) -> None:
    queue = ClassQueue()
    queue.add_request(request := _request("a", 1, 1.0, delay_s=delay_s))
    assert delay_s_of(request) == 0
    queue.check_invariants()


def test_class_queue_delays_none_for_long() -> None:
    queue = ClassQueue()
    for request in (_request("later", 1, 2.5), _request("earlier", 1, 1.0, delay_s=1e9)):
        queue.add_request(request)
    assert _ids(queue) == ["earlier", "later"]


def test_class_queue_takes_priorities_out_of_range_as_the_nearest_class() -> None:
    queue = ClassQueue()
    for request in (_request("later", 2, 2.0), _request("earlier", 99, 1.0), _request("urgent", -5, 3.0)):
        queue.add_request(request)
    assert _ids(queue) == ["urgent", "earlier", "later"]


def test_class_queue_gives_a_prepended_request_its_place_by_arrival() -> None:
    queue = ClassQueue()
    queue.add_request(_request("second", arrival_s=2.0))
    queue.prepend_requests([_request("third", arrival_s=3.0), _request("first", arrival_s=1.0)])
    assert _ids(queue) == ["first", "second", "third"]


def test_class_queue_moves_a_request_that_is_added_again() -> None:
    queue = ClassQueue()
    session = _request("session", arrival_s=1.0)
    queue.add_request(session)
    queue.add_request(_request("other", arrival_s=2.0))
    session.arrival_time = 3.0
    assert _ids(queue) == ["session", "other"]
    queue.add_request(session)
    queue.check_invariants()
    assert _ids(queue) == ["other", "session"]


def test_class_queue_calls_itself_empty_while_closed_but_keeps_its_length() -> None:
    queue = ClassQueue(is_open=lambda: False)
    queue.add_request(_request("a"))
    assert not queue
    assert len(queue) == 1
    assert _ids(queue) == ["a"]


def test_class_queue_does_not_ask_whether_it_is_open_when_empty() -> None:
    def is_open() -> bool:
        raise AssertionError("asked")

    assert not ClassQueue(is_open)


def test_class_queue_refuses_to_remove_a_stranger_but_passes_over_strangers_among_many() -> None:
    queue = ClassQueue()
    queue.remove_requests([_request("a")])
    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove_request(_request("a"))


@pytest.mark.parametrize("call", [ClassQueue.pop_request, ClassQueue.peek_request])
def test_class_queue_raises_index_error_when_empty(call) -> None:
    with pytest.raises(IndexError, match="empty queue"):
        call(ClassQueue())


def test_class_queue_touches_few_entries_to_remove_one_of_many() -> None:
    queue = ClassQueue()
    requests = [_request(str(i), arrival_s=i) for i in range(1024)]
    for request in requests:
        queue.add_request(request)
    heap = queue._heap
    for request in requests[512:1000:7]:
        queue.remove_request(request)
    assert queue._heap is heap, "removing few of many rebuilt the heap"
    queue.check_invariants()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 15), st.integers(-1, 4), st.integers(0, 5)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 15), max_size=8)),
        st.tuples(st.just("pop")),
    ),
    max_size=60,
)


@settings(derandomize=True, deadline=None, database=None)
@given(operations=OPERATIONS)
def test_class_queue_is_a_sorted_list_whatever_is_done_to_it(operations: list[tuple]) -> None:
    queue, model = ClassQueue(), {}
    for name, *arguments in operations:
        if name == "add":
            number, priority, arrival_s = arguments
            request = _request(str(number), priority, float(arrival_s))
            queue.add_request(request)
            model[request.request_id] = (min(max(priority, 0), 2), arrival_s, request.request_id)
        elif name == "remove":
            queue.remove_requests([_request(str(i)) for i in arguments[0]])
            for number in arguments[0]:
                model.pop(str(number), None)
        elif model:
            first = min(model.values())
            assert queue.peek_request().request_id == first[2]
            assert queue.pop_request().request_id == first[2]
            del model[first[2]]
        queue.check_invariants()
        assert _ids(queue) == [request_id for *_, request_id in sorted(model.values())]
        assert len(queue) == len(model)

"""Mutations tried by hand, each found by a test here: a call that fails still counted; requests counted, and not
sequences; used KV told for free; the step time of an idle engine told; the same number told twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replicas.routing_stats import RoutingLedger
from replicas.statistics import EngineStatistics
from slo.messages import Endpoint, GenerateCall, Standing
from slo.priority import PriorityClass
from slo.routing import RoutingStats
from slo.snapshots import ClassLoad, EngineSnapshot, KVUse

P0, P1, P2 = PriorityClass
BLOCK_TOKENS = 32


class Scene:
    """A ledger beside an engine that says what the test wants, on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.statistics = EngineStatistics(lambda: self.now_s)
        self.statistics.begin(max_num_seqs=4, num_blocks=10)
        self.ledger = RoutingLedger(self.statistics, BLOCK_TOKENS)

    def told(self, is_serving: bool = True) -> RoutingStats:
        self.ledger.check_invariants()
        told = RoutingStats.parse(self.ledger.tell(is_serving))
        assert told is not None
        return told


def call(priority: PriorityClass, **body: Any) -> GenerateCall:
    return GenerateCall(Endpoint.COMPLETION, body, priority, "id")


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_ledger_of_an_idle_replica_tells_of_nothing_under_way(scene: Scene) -> None:
    assert scene.told() == RoutingStats(1, {}, 10 * BLOCK_TOKENS, (0, 0, 0), None)


def test_ledger_counts_sequences_under_way_by_router_and_class(scene: Scene) -> None:
    with scene.ledger.under_way(call(P0), "a"), scene.ledger.under_way(call(P2, n=3, prompt=["x", "y"]), "a"):
        with scene.ledger.under_way(call(P2), "b"):
            assert scene.told().ongoing == {"a": (1, 0, 6), "b": (0, 0, 1)}
        assert scene.told().ongoing == {"a": (1, 0, 6)}
    assert scene.told().ongoing == {}


def test_ledger_counts_surplus_as_what_it_is_to_the_engine(scene: Scene) -> None:
    with scene.ledger.under_way(replace(call(P0), standing=Standing(is_surplus=True)), "a"):
        assert scene.told().ongoing == {"a": (0, 1, 0)}
    assert scene.told().ongoing == {}


def test_ledger_counts_a_call_no_more_when_it_fails(scene: Scene) -> None:
    with pytest.raises(ZeroDivisionError), scene.ledger.under_way(call(P1), "a"):
        _ = 1 / 0
    assert scene.told().ongoing == {}


def test_ledger_tells_kv_room_and_unread_prompts_as_the_engine_told_them(scene: Scene) -> None:
    classes = {P0: ClassLoad(num_unread_tokens=5), P2: ClassLoad(num_unread_tokens=700)}
    scene.statistics.note_heard(EngineSnapshot("engine", 0.0, classes, 4, KVUse(10, 7, 224, 200)))
    told = scene.told()
    assert (told.free_kv_tokens, told.unread_tokens) == (3 * BLOCK_TOKENS, (5, 0, 700))


def test_ledger_tells_the_step_time_while_something_is_under_way(scene: Scene) -> None:
    scene.now_s += 0.25
    scene.statistics.note_heard(None)
    with scene.ledger.under_way(call(P1), "a"):
        assert scene.told().step_s == 0.25
    assert scene.told().step_s is None, "who comes to an idle engine waits for no step"


def test_ledger_numbers_what_it_tells(scene: Scene) -> None:
    assert [scene.told().number for _ in range(3)] == [1, 2, 3]


def test_ledger_passes_on_that_the_engine_is_dead(scene: Scene) -> None:
    assert (scene.told(is_serving=True).is_serving, scene.told(is_serving=False).is_serving) == (True, False)

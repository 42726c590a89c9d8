"""vLLM's own scheduler underneath, driven without a model."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bench.compare.static_batching import StaticBatchScheduler
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver
from tests.replicas.scheduler.harness.scenes import check_answers, is_running

P2 = PriorityClass.P2


def driver(is_async: bool = False, **shape: int) -> Driver:
    sizes = EngineShape(max_num_seqs=2, prefix_cache=False, is_async=is_async, **shape)
    return Driver(build_scheduler(sizes, scheduler_cls=StaticBatchScheduler), depth=2 if is_async else 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_batch_begins_when_the_last_request_of_the_one_before_is_done(is_async: bool) -> None:
    engine = driver(is_async)
    assert isinstance(engine.scheduler, AsyncScheduler) == is_async
    for name, length in (("short", 5), ("long", 30), ("third", 5), ("fourth", 5)):
        engine.add(name, P2, max_tokens=length)
    engine.steps(15)
    assert "short" in engine.finished
    assert not is_running(engine, "third")
    assert engine.scheduler.get_request_counts() == (1, 2)
    while "long" not in engine.finished:
        engine.step()
    engine.steps(2)
    assert is_running(engine, "third")
    assert is_running(engine, "fourth")
    check_answers(engine)


def test_whole_batch_goes_in_together_when_its_prompts_take_several_steps() -> None:
    engine = driver(token_budget=64)
    engine.add("first", P2, prompt=150)
    engine.add("second", P2, prompt=150)
    engine.add("third", P2)
    engine.steps(8)
    assert is_running(engine, "second")
    assert not is_running(engine, "third")
    check_answers(engine)


def test_one_that_leaves_while_it_waits_is_forgotten_and_the_engine_comes_to_rest() -> None:
    engine = driver()
    for name in ("a", "b", "leaves", "stays"):
        engine.add(name, P2)
    engine.step()
    engine.abort("leaves")
    assert engine.scheduler.get_request_counts() == (2, 1)
    check_answers(engine)
    assert "stays" in engine.finished
    assert not engine.scheduler.has_requests()

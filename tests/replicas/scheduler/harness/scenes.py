"""What many tests begin and end with."""

from __future__ import annotations

from vllm.v1.request import RequestStatus

from replicas.scheduler.step_view import adapter_of
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver
from tests.replicas.scheduler.harness.worker import expected_output


def make_driver(preemption: PreemptionSettings | None = None, **shape) -> Driver:
    settings = SchedulerSettings(preemption=preemption) if preemption else None
    engine = EngineShape(**{"max_num_seqs": 2, "prefix_cache": False, **shape})
    return Driver(build_scheduler(engine, settings), depth=2 if engine.is_async else 1)


def fill(driver: Driver, priority: PriorityClass, count: int, **lengths) -> list[str]:
    """`count` requests of one class, up to their first decode steps."""
    request_ids = [f"{priority.name}-{i}" for i in range(count)]
    for request_id in request_ids:
        driver.add(request_id, priority, **{"max_tokens": 60, **lengths})
    driver.steps(4)
    assert {r.request_id for r in driver.scheduler.running} == set(request_ids)
    return request_ids


def is_running(driver: Driver, request_id: str) -> bool:
    return driver.requests[request_id].status == RequestStatus.RUNNING


def check_answers(driver: Driver) -> None:
    driver.run_to_end()
    for request_id, request in driver.requests.items():
        if request.status != RequestStatus.FINISHED_ABORTED:
            expected = expected_output(request.prompt_token_ids, request.max_tokens, adapter_of(request))
            assert driver.outputs[request_id] == expected
    assert driver.num_free_blocks == driver.num_all_blocks

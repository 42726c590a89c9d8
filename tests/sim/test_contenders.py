import pytest

from replicas.scheduler import PriorityScheduler
from sim.contenders import build_engine, shape_of, step_time_of
from sim.linear_cost import LinearCost
from sim.roofline import Roofline
from sim.scenario import Contender
from slo.settings.swap import DEFAULT_HOST_BYTES
from tests.sim.scenes import new_log
from tests.sim.test_simulation import scenario


def test_engine_has_the_sizes_of_gpu_model_and_settings() -> None:
    shape = shape_of(scenario(engine={"gpu": "H100", "model": "llama-3.1-8b"}))
    assert shape.block_bytes == 16 * 131072
    assert shape.num_blocks == pytest.approx((0.9 * 80e9 - 2e9 - 16.06e9) / shape.block_bytes, rel=0.001)
    assert shape.max_num_seqs == 4
    assert shape.watermark_ratio == 0.05
    assert shape.swap is not None
    assert shape.swap.host_bytes == DEFAULT_HOST_BYTES


def test_swap_is_off_where_it_has_no_memory() -> None:
    assert shape_of(scenario(settings={"swap": {"host_bytes": 0}})).swap is None


def test_measured_cost_goes_before_the_roofline() -> None:
    assert isinstance(step_time_of(scenario()), LinearCost)
    assert isinstance(step_time_of(scenario(engine={})), Roofline)


@pytest.mark.parametrize("contender", Contender, ids=lambda c: c.value)
def test_only_ours_has_our_scheduler_and_swap(contender: Contender) -> None:
    scheduler = build_engine(scenario(), contender, new_log()).scheduler
    is_ours = contender is Contender.EXPRESSLANE
    assert isinstance(scheduler, PriorityScheduler) is is_ours
    assert (scheduler.connector is not None) is is_ours
    assert scheduler.policy.value == ("priority" if contender.value in ("expresslane", "priority") else "fcfs")

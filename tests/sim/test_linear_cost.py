import pytest

from sim.linear_cost import LinearCost
from sim.step_work import StepWork


def test_linear_cost_adds_up_in_seconds() -> None:
    cost = LinearCost(step_ms=10, prefill_token_ms=1, decode_ms=2, context_token_ms=0.5, prefill_pair_ms=0.25)
    work = StepWork(prefill_tokens=3, prefill_pairs=8, num_prefills=1, num_decodes=4, decode_context=20)
    assert cost.step_s(work) == pytest.approx(1e-3 * (10 + 3 + 8 + 10 + 2))
    assert cost.context_slope_s() == pytest.approx(0.5e-3)

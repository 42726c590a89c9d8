import pytest

from sim.hardware import GPUS
from sim.model_shape import MODELS
from sim.roofline import Efficiency, Roofline
from sim.step_work import StepWork

H100, LLAMA = GPUS["H100"], MODELS["llama-3.1-8b"]
EXACT = Efficiency(
    compute_ratio=1, attention_ratio=1, read_ratio=1, step_ms=0, sequence_ms=0, schedule_ms=0, all_reduce_ms=0
)
ONE_DECODE = StepWork(num_decodes=1, num_sampled=1)


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes"),
    [("llama-3.1-8b", 8.03, 131072), ("llama-3.1-70b", 70.55, 327680), ("smollm2-135m", 0.1345, 23040)],
)
def test_model_has_the_published_size(name: str, billions: float, kv_bytes: int) -> None:
    assert MODELS[name].memory_bytes / 2e9 == pytest.approx(billions, rel=0.005)
    assert MODELS[name].kv_bytes_per_token == kv_bytes


def test_decode_alone_takes_as_long_as_reading_the_weights() -> None:
    weights_s = 2 * (LLAMA.layer_weights + LLAMA.head_weights) / 3.35e12
    assert Roofline(H100, LLAMA, efficiency=EXACT).step_s(ONE_DECODE) == pytest.approx(weights_s)


def test_prefill_takes_as_long_as_its_products() -> None:
    work = StepWork(prefill_tokens=4096, prefill_pairs=0, num_prefills=1)
    products = 2 * LLAMA.layer_weights * 4096
    assert Roofline(H100, LLAMA, efficiency=EXACT).step_s(work) == pytest.approx(products / 989.5e12)


def test_attention_of_a_long_prompt_grows_with_its_square() -> None:
    cost = Roofline(H100, LLAMA, efficiency=EXACT)
    longer, flat = (StepWork(prefill_tokens=4096, prefill_pairs=pairs, num_prefills=1) for pairs in (8 << 20, 0))
    products = 4 * 32 * 32 * 128 * (8 << 20)
    assert cost.step_s(longer) - cost.step_s(flat) == pytest.approx(products / 989.5e12)


def test_context_of_decodes_is_read() -> None:
    cost = Roofline(H100, LLAMA, efficiency=EXACT)
    work = StepWork(num_decodes=1, num_sampled=1, decode_context=100_000)
    assert cost.step_s(work) - cost.step_s(ONE_DECODE) == pytest.approx(100_000 * 131072 / 3.35e12)
    assert cost.context_slope_s() == pytest.approx(131072 / 3.35e12)


def test_two_gpus_share_the_work_and_pay_for_their_sums() -> None:
    one, two = (Roofline(H100, LLAMA, num, EXACT) for num in (1, 2))
    num_sums, num_bytes = 2 * 32, 2 * 4096 * 2 / 2
    sums_s = num_sums * num_bytes / (450e9 * EXACT.link_ratio)
    assert two.step_s(ONE_DECODE) == pytest.approx(one.step_s(ONE_DECODE) / 2 + sums_s)


def test_synchronous_step_carries_its_scheduling() -> None:
    behind, before = (Roofline(H100, LLAMA, is_async=is_async) for is_async in (True, False))
    assert before.step_s(ONE_DECODE) - behind.step_s(ONE_DECODE) == pytest.approx(1e-3 * Efficiency().schedule_ms)


def test_defaults_come_to_the_speeds_that_their_docstring_states() -> None:
    """They are assumptions: this holds what follows from them, not that a GPU does so."""
    cost = Roofline(H100, LLAMA)
    assert cost.step_s(ONE_DECODE) == pytest.approx(0.007, rel=0.1)
    work = StepWork(prefill_tokens=8192, prefill_pairs=4 * 2048 * 1024, num_prefills=4, num_sampled=4)
    assert 8192 / cost.step_s(work) == pytest.approx(30_000, rel=0.1)

"""vLLM's operations on the CPU backend, with tokens of the model itself among those of adapters."""

from __future__ import annotations

import pytest
import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

from replicas.adapters.cpu_worker import _OPS, CpuAdapters, passing_over
from replicas.engine import CPU_ADAPTERS_EXTENSION

RANK, NUM_IN, NUM_OUT, PLACES = 4, 8, 6, 2


def computed(index_of_rows: list[int], is_patched: bool) -> torch.Tensor:
    """The output for one input in each row, zero before."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(PLACES, 1, RANK, NUM_IN, generator=generator)
    second = torch.randn(PLACES, 1, NUM_OUT, RANK, generator=generator)
    inputs = torch.randn(1, NUM_IN, generator=generator).expand(len(index_of_rows), NUM_IN)
    between, output = torch.zeros(len(index_of_rows), RANK), torch.zeros(len(index_of_rows), 2 * NUM_OUT)
    indices = torch.tensor(index_of_rows)
    shrink, expand = lora_ops.bgmv_shrink.__wrapped__, lora_ops.bgmv_expand_slice.__wrapped__
    if is_patched:
        shrink, expand = passing_over(shrink), passing_over(expand)
    shrink(inputs, first, between, indices, 0.5)
    expand(between, second, output, indices, NUM_OUT, NUM_OUT, add_inputs=True)
    return output


@pytest.fixture(autouse=True)
def _patched() -> None:
    """As in a worker; for a process without base tokens nothing is changed by it."""
    CpuAdapters().pass_base_tokens_over()
    CpuAdapters().pass_base_tokens_over()


def test_vllm_still_reads_another_adapters_weights_for_a_token_without_one() -> None:
    """When this fails, vLLM passes such tokens over by itself: `cpu_worker.py` can go."""
    stock = computed([0, -1], is_patched=False)
    assert torch.equal(stock[1], computed([0, PLACES - 1], is_patched=False)[1])
    assert stock[1].any()


def test_tokens_without_an_adapter_are_passed_over_and_others_are_as_before() -> None:
    with_adapters = computed([0, 1, 1, 0], is_patched=False)
    assert torch.equal(computed([0, 1, 1, 0], is_patched=True), with_adapters)
    mixed = computed([0, -1, 1, -1], is_patched=True)
    assert torch.equal(mixed[[0, 2]], with_adapters[[0, 1]])
    assert not mixed[[1, 3]].any()
    assert not computed([-1, -1], is_patched=True).any()
    assert not computed([-1], is_patched=True).any()


def test_vllm_calls_the_operations_where_they_are_replaced() -> None:
    for module in (lora_ops, punica_cpu):
        for name in _OPS:
            op = getattr(module, name)
            assert not hasattr(op.__wrapped__, "__wrapped__"), "replaced once, however often it is asked for"
    calls = set(punica_cpu.sgmv_shrink.__code__.co_names) | set(punica_cpu.sgmv_expand_slice.__code__.co_names)
    assert {"bgmv_shrink", "bgmv_expand_slice"} <= calls
    assert f"{CpuAdapters.__module__}.{CpuAdapters.__name__}" == CPU_ADAPTERS_EXTENSION

"""A real engine with a tiny model on the CPU: answers stay the same, token for token, when KV is swapped out and back.

In float32, where a token does not depend on what else is in the batch. The KV cache is far too small for the requests;
how much was moved is counted, so that nothing passes because nothing happened.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine

from replicas.engine import CPU_ADAPTERS_EXTENSION
from replicas.kv_swap.configuration import transfer_config
from replicas.kv_swap.counts import LossReason
from replicas.kv_swap.moves import Tier
from replicas.scheduler import PriorityScheduler
from replicas.scheduler.step_cost import StepCost
from slo.priority import PriorityClass
from slo.settings.swap import SwapSettings
from tests.real_engine import BLOCK_TOKENS, real_engine
from tests.tiny_adapter import make_tiny_adapter
from tests.tiny_model import VOCAB_SIZE, make_tiny_model

P0, P1, P2 = PriorityClass
pytestmark = pytest.mark.engine

BLOCK_BYTES = 2 * 2 * 2 * BLOCK_TOKENS * 32 * 4
"""Layers, keys and values, KV heads, tokens, head size, float32."""
NUM_REQUESTS = 32
PREFIX = [random.Random(99).randrange(3, VOCAB_SIZE) for _ in range(64)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(autouse=True)
def _speed_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where computing again is quicker than a copy, as it may be with this model, it is chosen: not here."""
    monkeypatch.setattr(StepCost, "prefill_tokens_per_s", None)


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> dict[str, list[int]]:
    """The answers with room for all, one engine for all tests: batch after batch, nothing preempted."""
    with _engine(model, num_blocks=400, prefix_cache=False, swap=None) as engine:
        answers = _run(engine, _requests())
        counts = _scheduler_of(engine).preemption_counts
    assert counts.num_recomputed == counts.num_reclaimed == 0
    return answers


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_engine_answers_many_greedy_requests_the_same_when_they_are_swapped(
    model: Path, undisturbed: Mapping[str, list[int]], prefix_cache: bool
) -> None:
    """vLLM issue 29781: restored KV was corrupt under load."""
    swap = SwapSettings(host_bytes=400 * BLOCK_BYTES, max_move_ms=10_000)
    with _engine(model, num_blocks=40, prefix_cache=prefix_cache, swap=swap) as engine:
        answers = _run(engine, _requests())
        scheduler = _scheduler_of(engine)
        counts = scheduler.preemption_counts
        _check_empty(engine)
    assert answers == undisturbed
    assert counts.num_swapped + counts.num_reclaimed_swapped == counts.swap.num_swapped_out >= 5
    assert counts.swap.num_swapped_in >= 5
    assert min(counts.swap.num_bytes.values()) > 0
    assert counts.num_refused == 0
    assert counts.swap.num_recomputed[LossReason.NO_ROOM] == 0
    assert counts.num_recomputed_tokens == 0


def test_engine_of_two_workers_answers_the_same_when_both_have_moved_their_parts(model: Path) -> None:
    """Tensor parallelism: each worker holds some of the KV heads, and a move is over when both have done theirs."""
    requests = _requests()[:16]
    with _engine(model, num_blocks=400, prefix_cache=False, swap=None, num_workers=2) as engine:
        alone = _run(engine, requests)
    swap = SwapSettings(host_bytes=400 * BLOCK_BYTES, max_move_ms=10_000)
    with _engine(model, num_blocks=24, prefix_cache=False, swap=swap, num_workers=2) as engine:
        answers = _run(engine, requests)
        counts = _scheduler_of(engine).preemption_counts
        _check_empty(engine)
    assert answers == alone
    assert counts.swap.num_swapped_in >= 3
    assert counts.num_recomputed_tokens == 0


def test_engine_computes_again_what_swap_would_have_kept(model: Path, undisturbed: Mapping[str, list[int]]) -> None:
    """The same load without swap."""
    with _engine(model, num_blocks=40, prefix_cache=False, swap=None) as engine:
        answers = _run(engine, _requests())
        counts = _scheduler_of(engine).preemption_counts
    assert answers == undisturbed
    assert counts.num_recomputed_tokens > 1000


def test_engine_recomputes_when_the_host_pool_is_full(model: Path, undisturbed: Mapping[str, list[int]]) -> None:
    """vLLM issue 26329: it crashed."""
    swap = SwapSettings(host_bytes=9 * BLOCK_BYTES, max_move_ms=10_000)
    with _engine(model, num_blocks=40, prefix_cache=False, swap=swap) as engine:
        answers = _run(engine, _requests())
        counts = _scheduler_of(engine).preemption_counts
        _check_empty(engine)
    assert answers == undisturbed
    assert counts.swap.num_recomputed[LossReason.NO_ROOM] > 0
    assert counts.swap.num_swapped_out > 0


def test_engine_answers_the_same_when_victims_beyond_host_memory_go_to_files(
    model: Path, undisturbed: Mapping[str, list[int]], tmp_path: Path
) -> None:
    swap = SwapSettings(
        host_bytes=9 * BLOCK_BYTES,
        max_move_ms=10_000,
        directory=str(tmp_path),
        directory_bytes=400 * BLOCK_BYTES,
    )
    with _engine(model, num_blocks=40, prefix_cache=True, swap=swap) as engine:
        answers = _run(engine, _requests())
        scheduler = _scheduler_of(engine)
        counts = scheduler.preemption_counts
        tiers = scheduler.connector.swap.ledger.counts.num_out_by_tier
        _check_empty(engine)
    assert answers == undisturbed
    assert tiers[Tier.DIRECTORY] > 0
    assert counts.swap.num_recomputed[LossReason.NO_ROOM] == 0
    assert not list(tmp_path.rglob("*.kv"))


def test_engine_answers_each_adapters_requests_the_same_when_they_are_swapped(model: Path, tmp_path: Path) -> None:
    """Adapters' places in a step are short too. Alone, and then all at once, in one engine."""
    adapters = {i: LoRARequest(f"adapter-{i}", i, str(make_tiny_adapter(tmp_path / str(i), seed=i))) for i in (1, 2, 3)}
    requests = _requests()[:20]
    lora_of = {request[1]: adapters.get(number % 4) for number, request in enumerate(requests)}
    swap = SwapSettings(host_bytes=400 * BLOCK_BYTES, max_move_ms=10_000)
    with _engine(model, num_blocks=28, prefix_cache=True, swap=swap, max_adapters=2) as engine:
        alone = {}
        for _, *request in requests:
            alone |= _run(engine, [(0, *request)], lora_of)
            assert engine.reset_prefix_cache()
        counts = _scheduler_of(engine).preemption_counts
        assert counts.swap.num_swapped_out == 0
        together = _run(engine, requests, lora_of)
        assert engine.collective_rpc("pass_base_tokens_over") == [None], "may be asked for twice"
        _check_empty(engine)
    assert together == alone
    assert counts.swap.num_swapped_in >= 3
    assert counts.num_recomputed_tokens == 0


def _requests() -> list[tuple[int, str, PriorityClass, list[int], int]]:
    """(step of arrival, id, class, prompt, tokens to answer): batch at once, urgent ones among it."""
    chance = random.Random(3)
    requests = []
    for i in range(NUM_REQUESTS):
        priority = (P2, P2, P2, P1, P0)[i % 5]
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randrange(20, 250))]
        arrival = 0 if priority is P2 else chance.randrange(5, 120)
        requests.append((arrival, f"{priority.name}-{i}", priority, (PREFIX if i % 3 == 0 else []) + prompt, 60))
    return sorted(requests)


@contextmanager
def _engine(
    model: Path,
    num_blocks: int,
    prefix_cache: bool,
    swap: SwapSettings | None,
    max_adapters: int = 0,
    num_workers: int = 1,
) -> Iterator[LLMEngine]:
    adapters = {
        "enable_lora": True,
        "max_loras": max_adapters,
        "max_cpu_loras": 8,
        "worker_extension_cls": CPU_ADAPTERS_EXTENSION,
    }
    with real_engine(
        model,
        num_blocks,
        max_model_len=512,
        max_num_seqs=16,
        tensor_parallel_size=num_workers,
        enable_prefix_caching=prefix_cache,
        kv_transfer_config=KVTransferConfig(**transfer_config(swap)) if swap else None,
        **(adapters if max_adapters else {}),
    ) as engine:
        if max_adapters:
            engine.collective_rpc("pass_base_tokens_over")
        yield engine


def _scheduler_of(engine: LLMEngine) -> PriorityScheduler:
    scheduler = engine.engine_core.engine_core.scheduler
    assert isinstance(scheduler, PriorityScheduler)
    return scheduler


def _run(
    engine: LLMEngine,
    requests: list[tuple[int, str, PriorityClass, list[int], int]],
    lora_of: Mapping[str, LoRARequest | None] = MappingProxyType({}),
) -> dict[str, list[int]]:
    pending, answers, step = list(requests), {}, 0
    while pending or engine.has_unfinished_requests():
        while pending and pending[0][0] <= step:
            _, request_id, priority, prompt, max_tokens = pending.pop(0)
            sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(
                request_id,
                {"prompt_token_ids": prompt},
                sampling,
                lora_request=lora_of.get(request_id),
                priority=priority.level,
            )
        for output in engine.step():
            answers[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
        assert step < 200_000, "live lock"
    return answers


def _check_empty(engine: LLMEngine) -> None:
    scheduler = _scheduler_of(engine)
    for _ in range(2000):
        if not scheduler.has_requests():
            break
        engine.engine_core.engine_core.step()
    scheduler.check_invariants()
    ledger = scheduler.connector.swap.ledger
    assert not ledger.num_in_flight
    assert not ledger.room.holders
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1

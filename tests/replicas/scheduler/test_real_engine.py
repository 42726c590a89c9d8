"""A real engine with a tiny model on the CPU: batch answers stay the same, bit for bit, when urgent requests overtake.

In float32, where a token does not depend on what else is in the batch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.llm_engine import LLMEngine

from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from tests.real_engine import BLOCK_TOKENS, real_engine
from tests.tiny_model import VOCAB_SIZE, make_tiny_model

P0, P1, P2 = PriorityClass
pytestmark = pytest.mark.engine

BATCH = {f"batch-{i}": 40 + 70 * i for i in range(3)}
"""Prompt lengths."""
BATCH_TOKENS = 60
MAX_MODEL_LEN = 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.mark.parametrize(
    ("num_blocks", "urgent_prompt", "expects_pause"),
    [(None, 24, True), (16, 300, False)],
    ids=["slots-short", "kv-short"],
)
def test_engine_answers_batch_requests_the_same_when_urgent_ones_overtake(
    model: Path, num_blocks: int | None, urgent_prompt: int, expects_pause: bool
) -> None:
    max_model_len = MAX_MODEL_LEN if num_blocks is None else BLOCK_TOKENS * (num_blocks - 1)
    with real_engine(model, num_blocks, max_model_len=max_model_len) as engine:
        batch = [(0, request_id, P2, length, BATCH_TOKENS) for request_id, length in BATCH.items()]
        undisturbed = _run(engine, batch)
        scheduler = engine.engine_core.engine_core.scheduler
        assert isinstance(scheduler, PriorityScheduler)
        before = sum(scheduler.preemption_counts.num_victims.values())
        urgent = [(step, f"urgent-{step}", P0, urgent_prompt, 8) for step in range(6, 46, 13)]
        standard = [(20, "standard", P1, 50, 10)]
        disturbed = _run(engine, [*batch, *urgent, *standard])
        counts = scheduler.preemption_counts
    assert {i: disturbed[i] for i in BATCH} == undisturbed
    assert counts.num_victims[P2] > before
    assert (counts.num_paused if expects_pause else counts.num_recomputed) > 0
    assert counts.num_refused == 0
    if expects_pause:
        assert counts.num_lost_tokens == 0


@pytest.fixture
def _engines_can_be_started_after_numba() -> Iterator[None]:
    """vLLM 0.32.0 looks through every module for kernels at an engine's start, and fails at llvmlite's `lib`, which has
    every attribute that it is asked for. Numba brings it, which the proposer of drafts imports."""
    yield
    sys.modules.pop("llvmlite.binding.ffi", None)


@pytest.mark.usefixtures("_engines_can_be_started_after_numba")
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of numba, about vLLM's proposer
def test_engine_that_speculates_answers_the_same_when_urgent_ones_overtake(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts from the prompt's own n-grams. Victims are recomputed: a pause would keep what a rejection must undo."""
    batch = [(0, request_id, P2, length, BATCH_TOKENS) for request_id, length in BATCH.items()]
    urgent = [(step, f"urgent-{step}", P0, 24, 8) for step in range(6, 46, 13)]
    with real_engine(model, max_model_len=MAX_MODEL_LEN) as engine:
        plain = _run(engine, batch)
    ngrams = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    with real_engine(model, max_model_len=MAX_MODEL_LEN, speculative_config=ngrams) as engine:
        scheduler = engine.engine_core.engine_core.scheduler
        drafted = _count_drafts(scheduler, monkeypatch)
        undisturbed = _run(engine, batch)
        disturbed = _run(engine, [*batch, *urgent])
        counts = scheduler.preemption_counts
    assert undisturbed == plain
    assert {i: disturbed[i] for i in BATCH} == plain
    assert sum(drafted) > 0
    assert counts.num_recomputed >= 1
    assert counts.num_paused == 0


def _count_drafts(scheduler: PriorityScheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of draft tokens of each step."""
    drafted: list[int] = []
    schedule = scheduler.schedule

    def counted(*args: Any) -> SchedulerOutput:
        output = schedule(*args)
        drafted.append(sum(map(len, output.scheduled_spec_decode_tokens.values())))
        return output

    monkeypatch.setattr(scheduler, "schedule", counted)
    return drafted


def _run(engine: LLMEngine, arrivals: list[tuple[int, str, PriorityClass, int, int]]) -> dict[str, list[int]]:
    """`arrivals`: step, id, class, length of the prompt, tokens of the answer. Answers by id."""
    answers: dict[str, list[int]] = {}
    step = 0
    while step <= max(arrival[0] for arrival in arrivals) or engine.has_unfinished_requests():
        for due, request_id, priority, length, max_tokens in arrivals:
            if due == step:
                numbers = random.Random(request_id)
                prompt = [numbers.randrange(3, VOCAB_SIZE) for _ in range(length)]
                sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
                engine.add_request(request_id, {"prompt_token_ids": prompt}, sampling, priority=priority.level)
        for output in engine.step():
            answers[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
        assert step < 2000
    return answers

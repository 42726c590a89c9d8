"""Measures the steps of a real engine, in this process, under a load that mixes prompts and decodes of all sizes.

Steps are synchronous: each includes its own scheduling. On a GPU that schedules beside the step before, steps are
shorter by that; the fit is then on the safe side.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sim.calibration import MeasuredStep
from sim.step_reading import read_work
from sim.step_work import StepWork

WARM_UP_STEPS = 10
"""The first ones compile, and fill caches."""


def measure_steps(
    model: str,
    num_requests: int,
    max_prompt_tokens: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
    **engine_arguments: Any,
) -> list[MeasuredStep]:
    """Serves random requests with `model`, a local directory or a hub name, and times each step.

    Args:
        progress: told the number of requests that have ended.
        engine_arguments: of vLLM's `LLM`.
    """
    from vllm import SamplingParams

    chance = random.Random(seed)
    with _engine(model, engine_arguments) as engine:
        scheduler, vocabulary = engine.engine_core.engine_core.scheduler, engine.model_config.get_vocab_size()
        works: list[StepWork] = []
        scheduler.schedule = _watched(scheduler, works)
        steps: list[MeasuredStep] = []
        num_added = num_ended = 0
        while num_added < num_requests or engine.has_unfinished_requests():
            if num_added < num_requests and (chance.random() < 0.2 or not engine.has_unfinished_requests()):
                length = round(16 * (max_prompt_tokens / 16) ** chance.random())
                prompt = [chance.randrange(3, vocabulary) for _ in range(length)]
                sampling = SamplingParams(temperature=0, max_tokens=chance.randrange(2, 40), ignore_eos=True)
                engine.add_request(str(num_added), {"prompt_token_ids": prompt}, sampling)
                num_added += 1
            begun_s = time.perf_counter()
            outputs = engine.step()
            took_ms = 1e3 * (time.perf_counter() - begun_s)
            num_ended += sum(output.finished for output in outputs)
            progress(num_ended)
            if works and (works[-1].prefill_tokens or works[-1].num_decodes):
                steps.append(MeasuredStep(works[-1], took_ms))
            works.clear()
    return steps[WARM_UP_STEPS:]


def _watched(scheduler: Any, works: list[StepWork]) -> Callable[..., Any]:
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        works.append(read_work(scheduler, output)[0])
        return output

    return watched


@contextmanager
def _engine(model: str, arguments: dict[str, Any]) -> Iterator[Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler has to be in reach
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model=model, async_scheduling=False, enable_prefix_caching=False, **arguments)
    try:
        yield llm.llm_engine
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()

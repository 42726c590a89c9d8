"""`expresslane calibrate`: what steps cost on this machine, measured, for a scenario's `engine.measured`."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from cli.simulate import console, errors, fail, quiet_vllm
from replicas.engine import DEFAULT_CPU_KV_CACHE_BYTES, engine_environment, is_cpu_build, resolve_dtype
from replicas.models.default import ModelPreparationError, ensure_default_model
from slo.settings import EngineSettings
from slo.settings.serving import DEFAULT_MODEL


def calibrate(
    model: Annotated[str, typer.Option(help="A local directory, a hub name, or `default`.")] = DEFAULT_MODEL,
    requests: Annotated[int, typer.Option(min=10, help="Requests served while steps are timed.")] = 100,
    max_prompt: Annotated[int, typer.Option(min=32, help="Longest prompt, tokens.")] = 1024,
    slots: Annotated[int, typer.Option(min=1, help="Run slots of the engine.")] = 16,
    step_tokens: Annotated[int, typer.Option(min=64, help="Tokens of a step, at most.")] = 512,
) -> None:
    """Time the steps of an engine on this machine, and fit what they cost."""
    quiet_vllm()
    import os

    cpu = is_cpu_build()
    try:
        path = str(ensure_default_model()) if model == DEFAULT_MODEL else model
        os.environ.update(engine_environment(EngineSettings(), path != model, cpu, os.cpu_count() or 1))
        from sim.calibration import calibrate as fit
        from sim.measuring import measure_steps

        steps = measure_steps(
            path,
            requests,
            max_prompt,
            max_num_seqs=slots,
            max_num_batched_tokens=step_tokens,
            max_model_len=max_prompt + 64,
            dtype=resolve_dtype(EngineSettings().dtype),
            enforce_eager=cpu,
            kv_cache_memory_bytes=DEFAULT_CPU_KV_CACHE_BYTES if cpu else None,
            block_size=32 if cpu else 16,
        )
        found = fit(steps)
    except (ModelPreparationError, ValueError, OSError) as error:
        fail(error)
    off = found.error
    errors.print(
        f"{len(steps)} steps; on {off.num_steps} of them, not fitted, the error is {off.median_ratio:.1%} at "
        f"the median and {off.p90_ratio:.1%} at P90, and {off.total_ratio:+.1%} of all their time together",
        markup=False,
        soft_wrap=True,
    )
    console.print(yaml.safe_dump({"engine": {"measured": found.cost.model_dump()}}), markup=False, end="")

"""The engines that are compared: the same machine and sizes, each with its own scheduler."""

from __future__ import annotations

from replicas.kv_swap.moves import Bandwidths
from sim.copies import SwapSide
from sim.engine import SimEngine
from sim.engine_build import EngineShape, build_priority_scheduler, build_stock_scheduler
from sim.hardware import GPUS
from sim.model_shape import MODELS
from sim.roofline import Roofline
from sim.scenario import Contender, Scenario
from sim.static_batch import StaticBatch
from sim.step_work import StepTime
from sim.token_log import TokenLog
from slo.settings.swap import DEFAULT_HOST_BYTES

BLOCK_TOKENS = 16
"""Of a KV block, unless set: what a replica has on a GPU."""


def build_engine(scenario: Scenario, contender: Contender, log: TokenLog) -> SimEngine:
    """One replica's engine, idle."""
    engine, shape, step_time = scenario.engine, shape_of(scenario), step_time_of(scenario)
    match contender:
        case Contender.EXPRESSLANE:
            scheduler = build_priority_scheduler(shape, scenario.settings.scheduler)
            swap = SwapSide(shape.block_bytes, _bandwidths(scenario)) if shape.swap else None
            return SimEngine(scheduler, step_time, log, is_async=engine.is_async, swap=swap)
        case Contender.STATIC:
            scheduler = build_stock_scheduler(shape, "fcfs")
            return SimEngine(scheduler, step_time, log, is_async=engine.is_async, batch=StaticBatch())
        case _:
            return SimEngine(build_stock_scheduler(shape, contender.value), step_time, log, is_async=engine.is_async)


def shape_of(scenario: Scenario) -> EngineShape:
    """The sizes of one engine."""
    settings, engine, model = scenario.settings, scenario.engine, MODELS[scenario.engine.model]
    block_tokens = settings.engine.block_tokens or BLOCK_TOKENS
    block_bytes = model.kv_bytes_per_token * block_tokens
    host_bytes = DEFAULT_HOST_BYTES if settings.swap.host_bytes is None else settings.swap.host_bytes
    return EngineShape(
        num_blocks=int((settings.engine.kv_cache_bytes or engine.kv_bytes) // block_bytes),
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        max_num_seqs=settings.engine.max_num_seqs,
        max_step_tokens=engine.max_step_tokens,
        max_model_len=scenario.max_model_len,
        prefix_cache=settings.engine.enable_prefix_caching,
        is_async=engine.is_async,
        watermark_ratio=settings.engine.watermark_ratio,
        swap=settings.swap.model_copy(update={"host_bytes": host_bytes}) if host_bytes else None,
    )


def step_time_of(scenario: Scenario) -> StepTime:
    """What steps cost: as measured, or by GPU and model."""
    engine = scenario.engine
    if engine.measured is not None:
        return engine.measured
    return Roofline(GPUS[engine.gpu], MODELS[engine.model], engine.num_gpus, engine.efficiency, engine.is_async)


def _bandwidths(scenario: Scenario) -> Bandwidths:
    engine = scenario.engine
    rate = GPUS[engine.gpu].host_bytes_per_s * engine.efficiency.host_ratio * engine.num_gpus
    return Bandwidths(rate, rate)

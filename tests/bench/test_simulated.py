from itertools import takewhile

import pytest

from bench.compare.sizes import Sizes
from bench.plan import plan
from bench.scenario_file import load_scenario
from bench.simulated import arrivals_of, beside, simulated_scenario
from sim.contenders import step_time_of
from sim.figures import Latency
from sim.step_work import StepWork
from slo.priority import PriorityClass

BUSY = load_scenario("busy")


def test_simulator_gets_the_requests_that_the_generator_sends() -> None:
    arrivals = arrivals_of(BUSY)
    planned = list(takewhile(lambda a: a.at_s < BUSY.end_s, plan(BUSY, BUSY.seed or 0)))
    assert [(a.arrived_s, a.prompt_tokens, a.output_tokens) for a in arrivals] == [
        (p.at_s, p.ask.prompt_tokens, p.ask.output_tokens) for p in planned
    ]
    assert {a.priority for a in arrivals} == set(PriorityClass)
    assert [a.priority.name for a in arrivals] == [p.spec.name for p in planned]


def test_simulated_engine_has_the_sizes_and_costs_that_are_told() -> None:
    cost = {"step_ms": 10, "prefill_token_ms": 1, "decode_ms": 2}
    told = simulated_scenario(BUSY, Sizes(slots=5, kv_cache_bytes=2**20), cost)
    assert (told.settings.engine.max_num_seqs, told.settings.engine.kv_cache_bytes) == (5, 2**20)
    assert step_time_of(told).step_s(StepWork(prefill_tokens=5, num_decodes=2)) == pytest.approx(0.019)
    assert told.duration_s == BUSY.end_s


def test_latencies_stand_beside_each_other() -> None:
    simulated = Latency(mean_ms=1, p50_ms=90, p90_ms=1, p99_ms=220, max_ms=1)
    assert list(beside(simulated, {"p50_ms": 100, "p99_ms": 200})) == ["90 / 100 (0.90)", "220 / 200 (1.10)"]
    assert list(beside(None, {"p50_ms": 100, "p99_ms": 200})) == ["-", "-"]

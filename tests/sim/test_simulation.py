from typing import Any

from sim.scenario import Contender, Scenario
from sim.scenario_file import parse_scenario
from sim.simulation import simulate
from slo.outcome import Outcome
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass
FITTED = {"step_ms": 10, "prefill_token_ms": 0.1, "decode_ms": 1}


def stream(priority: str, rate: float, prompt: int, output: int) -> dict[str, Any]:
    sizes = {"prompt_tokens": {"mean": prompt, "cv": 0.5}, "output_tokens": {"mean": output, "cv": 0.5}}
    return {"priority": priority, "source": {"kind": "poisson", "rate_per_s": rate, **sizes}}


def scenario(**more: Any) -> Scenario:
    values: dict[str, Any] = {
        "duration_s": 20,
        "engine": {"measured": FITTED},
        "settings": {"replicas": {"num_replicas": 2}, "engine": {"max_num_seqs": 4}},
        "traffic": [stream("P0", 1, 50, 10), stream("P2", 5, 200, 100)],
    }
    return parse_scenario(values | more)


def test_same_scenario_gives_the_same_figures() -> None:
    assert simulate(scenario(), Contender.EXPRESSLANE) == simulate(scenario(), Contender.EXPRESSLANE)


def test_urgent_requests_do_better_than_in_stock_engines_under_overload() -> None:
    found = {contender: simulate(scenario(), contender) for contender in Contender}
    for figures in found.values():
        assert sum(c.num_requests for c in figures.classes) == sum(
            c.outcomes[Outcome.COMPLETED] for c in figures.classes
        )
    p99 = {c: of.ttft.p99_ms for c, figures in found.items() if (of := figures.of(P0)) and of.ttft}
    assert p99[Contender.EXPRESSLANE] < 150 < p99[Contender.PRIORITY] < p99[Contender.FCFS] < p99[Contender.STATIC]
    ours, theirs = found[Contender.EXPRESSLANE], found[Contender.PRIORITY]
    assert ours.goodput_per_s > 1.5 * theirs.goodput_per_s
    of_p2 = ours.of(P2)
    assert of_p2 is not None
    assert of_p2.num_preempted > 0
    assert of_p2.goodput_per_s is None


def test_more_replicas_are_less_busy() -> None:
    busy = []
    for num in (1, 4):
        settings = {"replicas": {"num_replicas": num}, "engine": {"max_num_seqs": 4}}
        figures = simulate(scenario(settings=settings), Contender.FCFS)
        busy.append(figures.busy_ratio)
        assert figures.replica_hours >= num * 20 / 3600
    assert busy[0] > 0.95 > busy[1]


def test_crash_loses_nothing_where_streams_resume_and_those_under_way_where_not() -> None:
    outcomes = []
    for resumes in (True, False):
        crashed = scenario(crashes=[{"at_s": 10, "replica": 0}], fleet={"resumes": resumes, "start_s": 3})
        figures = simulate(crashed, Contender.EXPRESSLANE)
        outcomes.append([of_class.outcomes.get(Outcome.REPLICA_LOST, 0) for of_class in figures.classes])
        assert all(
            c.outcomes[Outcome.COMPLETED] + lost == c.num_requests
            for c, lost in zip(figures.classes, outcomes[-1], strict=True)
        )
    assert outcomes[0] == [0, 0]
    assert sum(outcomes[1]) >= 4
    assert simulate(scenario(), Contender.EXPRESSLANE).replica_hours < figures.replica_hours + 5 / 3600


def test_front_is_part_of_every_ttft() -> None:
    ttft = []
    for front_ms in (0, 40):
        figures = simulate(scenario(fleet={"front_ms": front_ms}), Contender.EXPRESSLANE)
        of_p0 = figures.of(P0)
        assert of_p0 is not None
        assert of_p0.ttft is not None
        ttft.append(of_p0.ttft.mean_ms)
    assert round(ttft[1] - ttft[0], 6) == 40

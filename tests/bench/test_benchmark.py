from __future__ import annotations

import json
from typing import Any

import pytest

from bench.benchmark import Benchmark, headers_of, open_benchmark, run_search, run_speeds
from bench.client import ServerUnreachable
from bench.reply import Reply
from bench.run import Unwatched
from bench.scenario import ScenarioError
from slo.outcome import Outcome
from tests.bench.answers import scenario
from tests.bench.scripted_server import Script, ScriptedServer

CLASSES: list[dict[str, Any]] = [
    {"name": "P0", "share": 0.5, "headers": {"X-Priority": "P0"}, "targets": {"ttft_ms": 60_000}},
    {"name": "P2", "share": 0.5, "headers": {"X-Priority": "P2"}},
]
GENEROUS_MS = 60_000


def benchmark(
    server: ScriptedServer, *only: str, classes: list[dict[str, Any]] | None = None, **values: Any
) -> Benchmark:
    usual = {"url": server.url, "rate": 100, "warm_up_s": 0, "duration_s": 0.5, "max_lag_ms": GENEROUS_MS, "seed": 1}
    return open_benchmark(scenario(*(classes or CLASSES), **usual | values), only, {})


def unwatched(_speed: float) -> Unwatched:
    return Unwatched()


def prompts(server: ScriptedServer) -> list[str]:
    return [body["messages"][0]["content"] for _, body, _ in server.asked]


def test_each_class_is_sent_with_its_header_and_counted_by_its_outcome(server: ScriptedServer) -> None:
    server.script = lambda _, headers: Script(status=429 if headers["x-priority"] == "P2" else 200)
    measured = benchmark(server).run(1, 0, Unwatched())
    p0, p2 = measured.figures.classes
    assert set(p0.outcomes) == {Outcome.COMPLETED}
    assert set(p2.outcomes) == {Outcome.SHED}
    assert p0.num_requests + p2.num_requests == len(server.asked) > 20
    assert (p0.tokens_per_event, p0.prompt_tokens) == (1, 7)
    assert measured.figures.targets_hold


def test_model_is_the_first_listed_unless_the_scenario_names_one(server: ScriptedServer) -> None:
    assert benchmark(server).model == "first"
    assert benchmark(server, model="mine").model == "mine"
    benchmark(server, model="mine").run(1, 0, Unwatched())
    assert {body["model"] for _, body, _ in server.asked} == {"mine"}


def test_seed_is_drawn_when_the_scenario_leaves_it_open(server: ScriptedServer) -> None:
    seeds = {benchmark(server, seed=None).seed for _ in range(4)}
    assert len(seeds) > 1
    assert benchmark(server, seed=5).seed == 5


def test_class_is_left_out_when_others_are_chosen(server: ScriptedServer) -> None:
    result = run_speeds(benchmark(server, "P0"), [1], unwatched)
    assert {headers["x-priority"] for _, _, headers in server.asked} == {"P0"}
    assert [figures.name for figures in result.measured[0].figures.classes] == ["P0"]


def test_runs_on_one_server_never_repeat_a_text(server: ScriptedServer) -> None:
    run_speeds(benchmark(server), [1, 2], unwatched)
    assert len(set(prompts(server))) == len(server.asked)


def test_same_seed_asks_the_same(server: ScriptedServer) -> None:
    for _ in range(2):
        benchmark(server).run(1, 0, Unwatched())
    half = len(server.asked) // 2
    assert sorted(prompts(server)[:half]) == sorted(prompts(server)[half:])


def test_speed_brings_more_of_the_load(server: ScriptedServer) -> None:
    slow, fast = run_speeds(benchmark(server), [1, 3], unwatched).measured
    assert (slow.speed, fast.speed) == (1, 3)
    assert len(fast.run.answers) > 2 * len(slow.run.answers)


class InFlight:
    """Counts how many requests are in flight at most."""

    def __init__(self) -> None:
        self.num, self.most = 0, 0

    def sent(self) -> None:
        self.num += 1
        self.most = max(self.most, self.num)

    def ended(self, _reply: Reply) -> None:
        self.num -= 1


def test_closed_loop_has_as_many_streams_as_told(server: ScriptedServer) -> None:
    server.hold_until = 3
    in_flight = InFlight()
    classes = [{"name": "a", "rate": 1, "max_requests": 30}]
    measured = benchmark(server, classes=classes, streams=3, duration_s=600).run(1, 0, in_flight)
    assert (in_flight.most, in_flight.num) == (3, 0)
    assert len(measured.run.answers) == 30
    assert measured.figures.lag.send_p99_ms is None


def test_search_ends_at_the_rate_that_the_server_can_do(server: ScriptedServer) -> None:
    asked_before = [0]

    def watch(_speed: float) -> Unwatched:
        asked_before.append(len(server.asked))
        return Unwatched()

    # 40 requests in each half second, and no more.
    server.script = lambda _body, _headers: Script(status=429 if len(server.asked) - asked_before[-1] > 40 else 200)
    classes = [{"name": "a", "rate": 40, "arrivals": "constant", "targets": {"ttft_ms": GENEROUS_MS}}]
    result = run_search(benchmark(server, classes=classes), 1, 0.2, 20, watch)  # 20 requests at speed 1
    assert result.search is not None
    assert result.search.highest == 2
    assert result.search.lowest_failed is not None
    assert 2 < result.search.lowest_failed <= 2.4
    assert result.shown().speed == 2


def test_search_is_refused_when_there_is_nothing_to_hold_or_to_vary(server: ScriptedServer) -> None:
    with pytest.raises(ScenarioError, match="needs a class with targets"):
        run_search(benchmark(server, "P2"), 1, 0.1, 3, unwatched)
    with pytest.raises(ScenarioError, match="streams=2"):
        run_search(benchmark(server, streams=2), 1, 0.1, 3, unwatched)


def test_rate_does_not_count_as_held_when_the_generator_was_late(server: ScriptedServer) -> None:
    result = run_search(benchmark(server, max_lag_ms=1e-9), 1, 0.1, 1, unwatched)
    assert result.search is not None
    assert result.search.tried == ((1, False),)


def test_key_is_sent_and_kept_out_of_the_result(server: ScriptedServer) -> None:
    spec = {"name": "a", "rate": 50, "api_key_env": "A_KEY"}
    usual = {"url": server.url, "warm_up_s": 0, "duration_s": 0.1}
    opened = open_benchmark(scenario(spec, **usual), [], {"A_KEY": "secret"})
    assert server.model_headers["authorization"] == "Bearer secret"
    result = run_speeds(opened, [1], unwatched)
    assert {headers["authorization"] for _, _, headers in server.asked} == {"Bearer secret"}
    assert b"secret" not in result.to_json()


def test_key_that_is_not_set_is_told_by_its_variable() -> None:
    (spec,) = scenario({"name": "a", "rate": 1, "api_key_env": "A_KEY"}).classes
    with pytest.raises(ScenarioError, match=r"classes\.a\.api_key_env='A_KEY': the variable is not set"):
        headers_of(spec, {"B_KEY": "x"})


def test_server_that_cannot_be_asked_for_its_model_is_told(server: ScriptedServer) -> None:
    server.models_status = 500
    with pytest.raises(ServerUnreachable):
        benchmark(server)


def test_result_as_json_has_the_scenario_and_every_run(server: ScriptedServer) -> None:
    document = json.loads(run_speeds(benchmark(server), [1, 2], unwatched).to_json())
    assert document["scenario"]["classes"][0]["name"] == "P0"
    assert (document["model"], document["seed"], document["search"]) == ("first", 1, None)
    assert [run["speed"] for run in document["runs"]] == [1, 2]
    first = document["runs"][0]["figures"]["classes"][0]
    assert first["outcomes"] == {"completed": first["ttft"]["count"]}

from bench.benchmark import open_benchmark
from bench.event_rate import SCENARIO, _server
from bench.run import Unwatched
from bench.scenario_file import parse_scenario
from slo.outcome import Outcome


def test_trivial_server_streams_whole_answers_to_several_at_once() -> None:
    source = {"kind": "synthetic", "prompt_tokens": 4, "output_tokens": 250}
    classes = [{"name": "stream", "rate": 1, "max_requests": 6, "source": source}]
    with _server() as url:
        scenario = parse_scenario({**SCENARIO, "url": url, "streams": 3, "warm_up_s": 0, "classes": classes})
        figures = open_benchmark(scenario, [], {}).run(1, 0, Unwatched()).figures
    assert figures.of("stream").outcomes == {Outcome.COMPLETED: 6}
    assert figures.of("stream").tokens_per_event == 1

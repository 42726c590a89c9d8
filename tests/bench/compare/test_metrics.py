import pytest

from bench.compare.metrics import metrics_of, nearest
from bench.measure import figures_of
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

TOLD = figures_of(run(answers(reply(0, 0.1, 0.12), reply(1, outcome=Outcome.SHED))), scenario())
SILENT = figures_of(run([]), scenario())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("goodput_per_s", 0.1),
        ("done_s", 1.0),
        ("sent_per_s", 0.2),
        ("a.ttft.p99_ms", 100),
        ("a.e2e.max_ms", 120),
        ("a.attainment.every", 0.5),
        ("a.answered_ratio", 0.5),
        ("a.goodput_per_s", 0.1),
    ],
)
def test_metric_is_the_figure_of_its_name(metric: str, expected: float) -> None:
    assert metrics_of(["a"])[metric](TOLD) == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["a.ttft.p50_ms", "a.attainment.every", "a.answered_ratio", "a.goodput_per_s"])
def test_metric_of_no_sample_is_none(metric: str) -> None:
    assert metrics_of(["a"])[metric](SILENT) is None


def test_nearest_names_what_was_probably_meant() -> None:
    assert nearest("a.tfft.p99", metrics_of(["a"])).startswith("a.ttft.p99_ms")

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import curves
from bench.curves import MAX_POINTS, ChartsMissing, distribution, png_of, require_charts, tbts_ms, ttfts_ms
from bench.measure import figures_of
from bench.result import Measured, Result
from bench.run import Run
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

MIX = scenario({"name": "a", "rate": 1, "targets": {"ttft_ms": 200}}, {"name": "b", "rate": 1})
TOLD = [
    *answers(reply(0, 0.1, 0.12, 0.16), reply(1, 1.2), reply(2, 2.1, outcome=Outcome.FAILED)),
    *answers(reply(3, 3.5), name="b"),
]


def result(*runs: Run) -> Result:
    return Result(MIX, "m", 1, tuple(Measured(i + 1, told, figures_of(told, MIX)) for i, told in enumerate(runs)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=3000))
def test_distribution_rises_from_the_least_to_all_samples(values: list[float]) -> None:
    at, share = distribution(values)
    assert (at[0], at[-1], share[-1]) == (min(values), max(values), 1.0)
    assert at == sorted(at)
    assert share == sorted(share)
    assert len(at) == len(share) <= MAX_POINTS


def test_distribution_is_exact_when_samples_are_few() -> None:
    assert distribution([3, 1, 2, 2]) == ([1, 2, 2, 3], [0.25, 0.5, 0.75, 1])


def test_samples_are_those_of_the_class_that_were_answered_in_the_window() -> None:
    measured = result(run(TOLD, (0.5, 10))).measured[0]
    assert ttfts_ms(measured, MIX.classes[0]) == [pytest.approx(200)]
    assert ttfts_ms(measured, MIX.classes[1]) == [pytest.approx(500)]
    whole = result(run(TOLD)).measured[0]
    assert tbts_ms(whole, MIX.classes[0]) == pytest.approx([20, 40])


@pytest.mark.parametrize("runs", [[run(TOLD)], [run(TOLD), run(TOLD)], [run([])]])
def test_picture_is_drawn_of_one_run_of_several_and_of_nothing(runs: list[Run]) -> None:
    assert png_of(result(*runs)).startswith(b"\x89PNG\r\n")


def test_picture_has_a_third_panel_when_there_are_several_rates() -> None:
    one, two = (png_of(result(*[run(TOLD)] * n)) for n in (1, 2))
    width_of_one, width_of_two = (int.from_bytes(png[16:20], "big") for png in (one, two))
    assert width_of_two == pytest.approx(1.5 * width_of_one, rel=0.01)


def test_missing_library_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "find_spec", lambda _: None)
    with pytest.raises(ChartsMissing, match=r"pip install 'expresslane\[bench\]'"):
        require_charts()


def test_pictures_do_not_touch_the_programs_own_plots() -> None:
    png_of(result(run(TOLD)))
    assert "matplotlib.pyplot" not in sys.modules

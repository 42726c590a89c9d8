import pytest

from bench.measure import figures_of
from bench.result import Measured, Result, best_of
from bench.run import Run
from tests.bench.answers import answers, reply, run, scenario

GOOD = run(answers(reply(0, 0.1)))
BAD = run(answers(reply(0, 5.0)))
LATE = run(answers(reply(0, 0.1)), loop_lags_s=(1.0,))


def measured(speed: float, of: Run) -> Measured:
    return Measured(speed, of, figures_of(of, scenario()))


@pytest.mark.parametrize(
    ("runs", "best"),
    [
        ([(1, GOOD), (4, BAD), (2, GOOD)], 2),
        ([(1, GOOD), (2, LATE)], 1),
        ([(1, BAD)], None),
        ([], None),
    ],
)
def test_best_is_the_fastest_at_which_targets_held_and_the_generator_kept_up(
    runs: list[tuple[float, Run]], best: float | None
) -> None:
    found = best_of([measured(*told) for told in runs])
    assert (found.speed if found is not None else None) == best


def test_shown_is_the_best_or_else_the_first() -> None:
    good, bad = measured(1, GOOD), measured(2, BAD)
    assert Result(scenario(), "m", 1, (bad, good)).shown() is good
    assert Result(scenario(), "m", 1, (bad, bad)).shown() is bad

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.search import find_highest, next_rate


@given(st.floats(1e-3, 1e5), st.floats(1e-3, 1e5), st.floats(0.01, 1))
def test_search_ends_within_its_precision_of_the_true_limit(limit: float, start: float, precision: float) -> None:
    found = find_highest(lambda rate: rate <= limit, start, precision, max_tries=200)
    assert found.highest is not None
    assert found.lowest_failed is not None
    assert found.highest <= limit < found.lowest_failed <= found.highest * (1 + precision) * 1.000001


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_search_keeps_what_held_below_what_failed_however_runs_differ(answers: list[bool]) -> None:
    given_answers = iter(answers)
    found = find_highest(lambda _: next(given_answers), 1.0, 0.05, max_tries=len(answers))
    assert found.highest == max((rate for rate, held in found.tried if held), default=None)
    assert found.lowest_failed == min((rate for rate, held in found.tried if not held), default=None)
    if found.highest is not None and found.lowest_failed is not None:
        assert found.highest < found.lowest_failed


def test_search_takes_whole_numbers() -> None:
    assert find_highest(lambda rate: rate < 3, 1, 0.5, max_tries=9).tried == (
        (1, True),
        (2, True),
        (4, False),
        (pytest.approx(8**0.5), True),
    )


def test_search_gives_up_after_its_tries() -> None:
    assert find_highest(lambda _: False, 8.0, 0.1, max_tries=3).tried == ((8.0, False), (4.0, False), (2.0, False))
    assert find_highest(lambda _: True, 1.0, 0.1, max_tries=3).highest == 4.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(None, None, 3.0), (4.0, None, 8.0), (None, 4.0, 2.0), (1.0, 4.0, 2.0), (1.0, 1.1, None), (1.0, 1.11, 1.11**0.5)],
)
def test_next_rate_doubles_halves_and_then_meets_in_the_middle(
    low: float | None, high: float | None, expected: float | None
) -> None:
    assert next_rate(low, high, start=3.0, precision=0.1) == (None if expected is None else pytest.approx(expected))

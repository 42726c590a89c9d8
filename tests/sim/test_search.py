import pytest

from sim.search import find_fewest


@pytest.mark.parametrize("fewest", [1, 2, 3, 7, 8, 9, 31, 32])
@pytest.mark.parametrize("start", [1, 4, 40])
def test_fewest_is_found_with_no_number_tried_twice(fewest: int, start: int) -> None:
    tried: list[int] = []

    def holds(number: int) -> bool:
        tried.append(number)
        return number >= fewest

    assert find_fewest(holds, start, most=32) == fewest
    assert len(tried) == len(set(tried))
    assert max(tried) <= 32


def test_none_when_not_even_the_most_do() -> None:
    assert find_fewest(lambda _: False, 1, most=5) is None

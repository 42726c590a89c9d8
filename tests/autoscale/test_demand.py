from math import inf

import pytest

from autoscale.demand import Demand, demand_of
from autoscale.view import ClassView
from tests.autoscale.watched_fleet import P0, P1, P2


def test_demand_of_a_class_is_its_own_and_that_of_more_urgent_ones() -> None:
    classes = {
        P0: ClassView(num_running=1, num_waiting=2, arrivals_per_s=1, completions_per_s=0.5),
        P1: ClassView(num_running=10, num_paused=5, num_swapped=2, arrivals_per_s=3, completions_per_s=2),
        P2: ClassView(num_running=100, arrivals_per_s=7, completions_per_s=7),
    }
    assert demand_of(P0, classes) == Demand(3, 1, 0.5)
    assert demand_of(P1, classes) == Demand(20, 4, 2.5)
    assert demand_of(P2, classes) == Demand(120, 11, 9.5)


@pytest.mark.parametrize(("arrivals", "completions", "served"), [(3, 2, 2), (2, 3, 2), (0, 1, 0)])
def test_served_is_what_arrives_and_is_coped_with(arrivals: float, completions: float, served: float) -> None:
    assert Demand(10, arrivals, completions).served_per_s == served


@pytest.mark.parametrize(
    ("arrivals", "completions", "enough", "expected_s"),
    [(1, 3, 60, 20), (3, 3, 60, inf), (4, 3, 60, inf), (4, 3, 100, 0), (1, 3, 200, 0)],
)
def test_demand_recedes_by_what_ends_and_does_not_arrive(
    arrivals: float, completions: float, enough: float, expected_s: float
) -> None:
    assert Demand(100, arrivals, completions).recedes_to_in_s(enough) == expected_s

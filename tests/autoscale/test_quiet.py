from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscale.quiet import QuietTime
from slo.settings import AutoscaleSettings

SETTINGS = AutoscaleSettings(
    scale_in_quiet_s=100, scale_in_quiet_max_s=500, scale_in_regret_s=50, quiet_half_life_s=1000
)


@pytest.mark.parametrize(("doublings", "needed_s"), [(0, 100), (1, 200), (2, 400), (3, 500), (40, 500)])
def test_quiet_time_doubles_with_each_mistake_up_to_its_cap(doublings: int, needed_s: float) -> None:
    assert QuietTime(num_doublings=doublings).needed_s(SETTINGS) == needed_s


@pytest.mark.parametrize(("has_room", "seen_s"), [(True, 50), (False, 0), (None, 40)])
def test_quiet_time_goes_on_stands_or_begins_anew(has_room: bool | None, seen_s: float) -> None:
    assert QuietTime(seen_s=40).watched(has_room, False, 10, SETTINGS).seen_s == seen_s


def test_quiet_time_is_over_when_enough_was_seen() -> None:
    assert not QuietTime(seen_s=99).is_over(SETTINGS)
    assert QuietTime(seen_s=100).is_over(SETTINGS)
    assert not QuietTime(seen_s=100, num_doublings=1).is_over(SETTINGS)


@pytest.mark.parametrize(("after_s", "doublings"), [(0, 1), (50, 1), (51, 0)])
def test_breach_is_a_mistake_of_the_scale_in_only_for_a_while(after_s: float, doublings: int) -> None:
    quiet = QuietTime().scaled_in().watched(True, False, after_s, SETTINGS)
    assert quiet.watched(False, True, 0, SETTINGS).num_doublings == doublings


def test_breach_without_a_scale_in_is_no_mistake() -> None:
    assert QuietTime().watched(False, True, 10, SETTINGS).num_doublings == 0


def test_one_scale_in_is_one_mistake_however_long_the_breach_lasts() -> None:
    quiet = QuietTime().scaled_in()
    for _ in range(4):
        quiet = quiet.watched(False, True, 10, SETTINGS)
    assert quiet.num_doublings == 1


def test_mistakes_are_not_counted_beyond_the_cap() -> None:
    quiet = QuietTime()
    for _ in range(10):
        quiet = quiet.scaled_in().watched(False, True, 0, SETTINGS)
    assert quiet.num_doublings == 3


def test_mistake_is_forgotten_after_a_half_life_without_another() -> None:
    quiet = QuietTime(num_doublings=2)
    for expected in (2, 1, 1, 0, 0):
        quiet = quiet.watched(True, False, 500, SETTINGS)
        assert quiet.num_doublings == expected


def test_target_that_changed_begins_the_quiet_time_anew_and_is_no_scale_in() -> None:
    assert QuietTime(seen_s=90).restarted() == QuietTime()
    assert QuietTime(seen_s=90).scaled_in() == QuietTime(since_scale_in_s=0)


@given(st.lists(st.tuples(st.sampled_from([True, False, None, "in"]), st.booleans(), st.floats(0, 600)), max_size=60))
def test_quiet_time_holds_together_whatever_happens(events: list[tuple[bool | str | None, bool, float]]) -> None:
    quiet = QuietTime()
    for room, is_breach, elapsed_s in events:
        quiet = quiet.scaled_in() if isinstance(room, str) else quiet.watched(room, is_breach, elapsed_s, SETTINGS)
        quiet.check_invariants()
        assert 100 <= quiet.needed_s(SETTINGS) <= 500

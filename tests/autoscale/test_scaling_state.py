from __future__ import annotations

import json

import pytest

from autoscale.scaling_state import ScalingState, dump_state, load_state
from tests.autoscale.watched_fleet import BAD, START_S, WatchedFleet, broken_at_40


def test_state_survives_as_text_but_for_the_clock() -> None:
    fleet = broken_at_40()
    fleet.look_for(START_S + 60, BAD)
    recalled = load_state(dump_state(fleet.state))
    assert recalled.last_s is None
    assert recalled.records == fleet.state.records
    assert recalled.starts == fleet.state.starts
    assert recalled.quiet == fleet.state.quiet
    assert recalled.target == fleet.state.target


def test_state_is_plain_json() -> None:
    assert json.loads(dump_state(ScalingState()))["target"] is None


def test_state_of_an_earlier_version_is_as_at_the_start_in_what_it_lacks() -> None:
    assert load_state('{"target": 3}') == ScalingState(target=3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"target": "many"}',
        '{"records": []}',
        '{"promised_gone_s": -1}',
        '{"starts": {"num_failed": 2}}',
        '{"quiet": {"seen_s": -5}}',
    ],
)
def test_text_that_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_state(text)


def test_fleet_is_watched_from_the_start_after_a_restart() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(100)
    after = WatchedFleet(target=2, state=load_state(dump_state(fleet.state)), now_s=1e6)
    after.look()
    assert after.state.quiet.seen_s == fleet.state.quiet.seen_s

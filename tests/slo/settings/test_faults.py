from __future__ import annotations

import pytest

from slo.settings import SettingsError, parse_settings


def test_stall_timeout_is_20_s_unless_set() -> None:
    assert parse_settings({}).faults.stall_timeout_s == 20
    assert parse_settings({"faults": {"stall_timeout_s": 60}}).faults.stall_timeout_s == 60


@pytest.mark.parametrize("value", [0, -1, "never"])
def test_stall_timeout_must_be_a_time(value: object) -> None:
    with pytest.raises(SettingsError, match=r"faults\.stall_timeout_s"):
        parse_settings({"faults": {"stall_timeout_s": value}})


def test_lost_requests_get_four_replicas_and_wait_two_minutes_for_one_unless_set() -> None:
    faults = parse_settings({}).faults
    assert (faults.max_attempts, faults.replacement_timeout_s) == (4, 120)
    assert parse_settings({"faults": {"max_attempts": 1, "replacement_timeout_s": 0}}).faults.max_attempts == 1


@pytest.mark.parametrize(("key", "value"), [("max_attempts", 0), ("max_attempts", 1.5), ("replacement_timeout_s", -1)])
def test_attempts_and_the_wait_must_be_bounds(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"faults.{key}"):
        parse_settings({"faults": {key: value}})

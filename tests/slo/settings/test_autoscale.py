from typing import Any

import pytest
from pydantic import ValidationError

from slo.settings import AutoscaleSettings, ReplicaBounds, Settings, SettingsError, parse_settings


def test_nothing_scales_until_it_is_asked_for() -> None:
    assert Settings().replica_bounds == (1, 1)
    assert parse_settings({"replicas": {"num_replicas": 4}}).replica_bounds == (4, 4)


def test_period_and_window_are_the_designs() -> None:
    settings = AutoscaleSettings()
    assert (settings.mode, settings.period_s, settings.window_s) == ("on", 10, 30)


@pytest.mark.parametrize(
    ("given", "num_replicas", "expected"),
    [
        ({}, 3, (3, 3)),
        ({"max_replicas": 8}, 3, (1, 8)),
        ({"min_replicas": 2}, 3, (2, 3)),
        ({"min_replicas": 0}, 1, (0, 1)),
        ({"min_replicas": 2, "max_replicas": 8}, 3, (2, 8)),
    ],
)
def test_bounds_are_those_set_or_follow_from_the_start(
    given: dict[str, int], num_replicas: int, expected: tuple[int, int]
) -> None:
    assert AutoscaleSettings.model_validate(given).bounds(num_replicas) == expected


@pytest.mark.parametrize(("num_replicas", "expected"), [(0, 2), (2, 2), (3, 3), (5, 5), (6, 5)])
def test_bounds_clamp_what_lies_outside(num_replicas: int, expected: int) -> None:
    assert ReplicaBounds(2, 5).clamp(num_replicas) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"autoscale": {"min_replicas": 2, "max_replicas": 4}},
            "settings: replicas.num_replicas=1 must lie between autoscale.min_replicas=2 and autoscale.max_replicas=4",
        ),
        (
            {"replicas": {"num_replicas": 5}, "autoscale": {"max_replicas": 4}},
            "settings: replicas.num_replicas=5 must lie between autoscale.min_replicas=1 and autoscale.max_replicas=4",
        ),
        (
            {"autoscale": {"min_replicas": 5, "max_replicas": 4}},
            "autoscale: min_replicas=5 exceeds max_replicas=4",
        ),
        ({"autoscale": {"period_s": 20}}, "autoscale: window_s=30 must be a multiple of period_s=20"),
        ({"autoscale": {"window_s": 5}}, "autoscale: window_s=5 must be a multiple of period_s=10"),
        ({"autoscale": {"stale_after_s": 10}}, "autoscale: stale_after_s=10 must exceed period_s=10"),
        ({"autoscale": {"settle_s": 20}}, "autoscale: settle_s=20 must not be below window_s=30"),
        (
            {"autoscale": {"start_retry_s": 9000}},
            "autoscale: start_retry_max_s=7200 must not be below start_retry_s=9000",
        ),
        (
            {"autoscale": {"scale_in_quiet_s": 4000}},
            "autoscale: scale_in_quiet_max_s=3600 must not be below scale_in_quiet_s=4000",
        ),
        ({"autoscale": {"mode": "perhaps"}}, "autoscale.mode='perhaps': Input should be 'on', 'dry_run' or 'off'"),
    ],
)
def test_settings_are_refused_with_the_values_that_contradict(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(values)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("period_s", 0),
        ("min_replicas", -1),
        ("max_replicas", 0),
        ("max_step_replicas", 0),
        ("queue_periods", 0),
        ("headroom_ratio", 0),
        ("headroom_ratio", 1),
        ("capacity_half_life_s", 0),
        ("zero_after_s", 0),
    ],
)
def test_autoscale_is_refused_when_a_value_is_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        AutoscaleSettings.model_validate({key: value})


@pytest.mark.parametrize(("given", "mode"), [(True, "on"), (False, "off"), ("on", "on"), ("dry_run", "dry_run")])
def test_mode_is_understood_as_yaml_reads_it(given: object, mode: str) -> None:
    assert AutoscaleSettings.model_validate({"mode": given}).mode == mode


def test_window_may_be_a_multiple_of_a_period_that_has_no_exact_float() -> None:
    assert AutoscaleSettings(period_s=0.1, window_s=0.3).window_s == 0.3


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in AutoscaleSettings.model_fields.values())

from typing import Any

import pytest
from pydantic import ValidationError

from slo.settings import AlertSettings, parse_settings

RULES = ("tbt_breach", "preemption_storm", "low_batching", "ttft_high", "kv_hit_low", "batch_size_low")


def test_alert_defaults_are_the_design_tables() -> None:
    told = {
        name: {key: value for key, value in values.items() if key != "message"} if isinstance(values, dict) else values
        for name, values in AlertSettings().model_dump().items()
    }
    three = {"enabled": True, "severity": "warning", "hold_periods": 3, "recovery_periods": 3}
    assert told == {
        "tbt_breach": three | {"severity": "critical", "target_ratio": 2},
        "preemption_storm": three | {"max_per_minute": 10},
        "low_batching": three | {"min_gpu_ratio": 0.60, "max_waiting": 100},
        "ttft_high": three | {"max_ms": 1000},
        "kv_hit_low": three | {"hold_periods": 6, "recovery_periods": 6, "min_ratio": 0.95},
        "batch_size_low": three | {"hold_periods": 30, "min_slots_ratio": 0.125, "max_waiting": 0},
        "cleared_kept_s": 3600,
        "max_fragmentation_ratio": 0.04,
    }


@pytest.mark.parametrize("name", RULES)
def test_alert_says_what_to_look_at(name: str) -> None:
    assert "heck" in getattr(AlertSettings(), name).message


@pytest.mark.parametrize("name", RULES)
def test_alert_keeps_its_other_terms_when_one_is_set(name: str) -> None:
    rule = getattr(parse_settings({"alerts": {name: {"hold_periods": 9}}}).alerts, name)
    assert rule == getattr(AlertSettings(), name).model_copy(update={"hold_periods": 9})


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("key", "value"),
    [("hold_periods", 0), ("recovery_periods", 0), ("severity", "fatal"), ("message", ""), ("threshold", 1)],
)
def test_alert_is_refused_when_its_terms_are_out_of_range(name: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{name}.{key}"):
        AlertSettings.model_validate({name: {key: value}})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("tbt_breach", "target_ratio", 1),
        ("preemption_storm", "max_per_minute", 0),
        ("low_batching", "min_gpu_ratio", 60),
        ("low_batching", "max_waiting", -1),
        ("ttft_high", "max_ms", 0),
        ("kv_hit_low", "min_ratio", 95),
        ("batch_size_low", "min_slots_ratio", 8),
        ("batch_size_low", "max_waiting", -1),
    ],
)
def test_alert_is_refused_when_a_threshold_is_out_of_range(name: str, key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=f"{name}.{key}"):
        AlertSettings.model_validate({name: {key: value}})


@pytest.mark.parametrize(("key", "value"), [("max_fragmentation_ratio", 4), ("cleared_kept_s", -1)])
def test_alerts_are_refused_when_a_number_is_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        AlertSettings.model_validate({key: value})

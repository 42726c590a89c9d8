import pytest
from pydantic import ValidationError

from slo.settings import AlertSettings


def test_alert_defaults_are_the_design_tables() -> None:
    assert AlertSettings().model_dump() == {
        "tbt_breach_ratio": 2,
        "tbt_breach_periods": 3,
        "preemption_storm_per_minute": 10,
        "low_batching_gpu_ratio": 0.60,
        "low_batching_waiting": 100,
        "ttft_high_ms": 1000,
        "kv_hit_low_ratio": 0.95,
        "max_fragmentation_ratio": 0.04,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tbt_breach_ratio", 1),
        ("tbt_breach_periods", 0),
        ("preemption_storm_per_minute", 0),
        ("low_batching_gpu_ratio", 60),
        ("low_batching_waiting", 0),
        ("ttft_high_ms", 0),
        ("kv_hit_low_ratio", 95),
        ("max_fragmentation_ratio", 4),
    ],
)
def test_alert_is_refused_when_a_threshold_is_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        AlertSettings.model_validate({key: value})

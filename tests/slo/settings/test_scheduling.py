import json

import pytest
from pydantic import ValidationError

from slo.settings import PreemptionSettings, SchedulerSettings
from slo.settings.scheduling import ADDITIONAL_CONFIG_KEY


def test_preemption_defaults_are_the_design_tables() -> None:
    assert PreemptionSettings().model_dump() == {
        "enabled": True,
        "max_victims_per_step": 2,
        "saturation_ratio": 0.90,
        "pause": True,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_victims_per_step", 0), ("saturation_ratio", 0), ("saturation_ratio", 1.01), ("saturation_ratio", -1)],
)
def test_preemption_is_refused_when_a_value_is_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        PreemptionSettings.model_validate({key: value})


def test_additional_config_gives_the_scheduler_the_same_settings_through_json() -> None:
    asked = SchedulerSettings.model_validate(
        {
            "targets": {"p0": {"ttft_p99_ms": 50}, "p2": {"tbt_p99_ms": None}},
            "preemption": {"max_victims_per_step": 1, "pause": False},
        }
    )
    sent = json.loads(json.dumps(asked.as_additional_config(), allow_nan=False))
    assert list(sent) == [ADDITIONAL_CONFIG_KEY]
    assert SchedulerSettings.model_validate(sent[ADDITIONAL_CONFIG_KEY]) == asked

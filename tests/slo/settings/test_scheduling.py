import json

import pytest
from pydantic import ValidationError

from slo.priority import PriorityClass
from slo.settings import PreemptionSettings, SchedulerSettings
from slo.settings.scheduling import ADDITIONAL_CONFIG_KEY, AgingPeriods, BudgetSettings, FairnessSettings


def test_preemption_defaults_are_the_design_tables() -> None:
    assert PreemptionSettings().model_dump() == {
        "enabled": True,
        "max_victims_per_step": 2,
        "pause": True,
    }


@pytest.mark.parametrize(("key", "value"), [("max_victims_per_step", 0), ("max_victims_per_step", -1)])
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


def test_budget_settings_refuse_an_expectation_that_is_longer_at_least_than_at_most() -> None:
    with pytest.raises(ValidationError, match="expected_min_s=40 exceeds expected_max_s=30"):
        BudgetSettings(expected_min_s=40)


@pytest.mark.parametrize("ratio", [0, 1.5])
def test_budget_settings_refuse_a_ceiling_outside_the_target(ratio: float) -> None:
    with pytest.raises(ValidationError, match="ceiling_ttft_ratio"):
        BudgetSettings(ceiling_ttft_ratio=ratio)


def test_aging_periods_are_those_of_the_classes_that_have_a_step_up() -> None:
    assert [AgingPeriods(p1=7, p2=None).of(c) for c in PriorityClass] == [None, 7, None]


def test_fairness_can_be_switched_off_in_part() -> None:
    fairness = FairnessSettings.model_validate({"aging_s": {"p1": None}, "max_preemptions_per_request": None})
    assert fairness.aging_s == AgingPeriods(p1=None)
    assert fairness.max_preemptions_per_request is None
    assert fairness.suspended_prefill_deadline_s == FairnessSettings().suspended_prefill_deadline_s


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"aging_s": {"p2": 0}}, "p2"),
        ({"aging_s": {"p0": 1}}, "p0"),
        ({"max_lifted": 0}, "max_lifted"),
        ({"max_preemptions_per_request": -1}, "max_preemptions_per_request"),
        ({"suspended_prefill_deadline_s": 0}, "suspended_prefill_deadline_s"),
    ],
)
def test_fairness_is_refused_when_a_value_is_out_of_range(values: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        FairnessSettings.model_validate(values)

"""Settings on their way through vLLM's configuration, and engines that are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from replicas.scheduler import PriorityScheduler
from replicas.scheduler.configuration import check_configuration, read_settings
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from tests.replicas.scheduler.harness import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.build import make_config

SHAPE = EngineShape()


def test_read_settings_gives_the_defaults_when_there_are_none() -> None:
    assert read_settings(make_config(SHAPE)) == SchedulerSettings()


def test_read_settings_gives_what_was_set_after_a_way_through_json() -> None:
    settings = SchedulerSettings(preemption=PreemptionSettings(max_victims_per_step=7))
    config = make_config(SHAPE)
    config.additional_config = json.loads(json.dumps(settings.as_additional_config()))
    assert read_settings(config) == settings


def test_read_settings_passes_over_the_keys_of_others() -> None:
    config = make_config(SHAPE)
    config.additional_config = {"somebody": {"else": 1}}
    assert read_settings(config) == SchedulerSettings()


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"preemption": {"max_victims_per_step": 0}}, "max_victims_per_step"),
        ({"preemption": {"enabled": True, "victims": 1}}, "victims"),
        ("on", "expresslane"),
    ],
)
def test_read_settings_names_what_is_wrong(found, named) -> None:
    config = make_config(SHAPE)
    config.additional_config = {"expresslane": found}
    with pytest.raises(ValueError, match=named):
        read_settings(config)


def test_check_configuration_refuses_another_policy() -> None:
    with pytest.raises(ValueError, match=r"needs scheduling policy 'priority'.*got 'fcfs'"):
        check_configuration(make_config(SHAPE, policy="fcfs"))


def test_check_configuration_refuses_a_diffusion_model() -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(policy="priority"),
        model_config=SimpleNamespace(is_diffusion=True, model="some/model"),
    )
    with pytest.raises(ValueError, match="diffusion model 'some/model'"):
        check_configuration(config)


def test_scheduler_is_found_by_its_name() -> None:
    config = make_config(SHAPE)
    config.scheduler_config.scheduler_cls = "replicas.scheduler.PriorityScheduler"
    assert config.scheduler_config.get_scheduler_cls() is PriorityScheduler


def test_scheduler_takes_its_settings_from_the_engine() -> None:
    settings = SchedulerSettings(preemption=PreemptionSettings(enabled=False))
    scheduler = build_scheduler(SHAPE, settings)
    assert isinstance(scheduler, PriorityScheduler)
    assert scheduler.settings == settings

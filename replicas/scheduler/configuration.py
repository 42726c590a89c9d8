"""What the scheduler takes from the engine's configuration, and what it refuses at start-up."""

from __future__ import annotations

from vllm.config import VllmConfig

from slo.settings.scheduling import ADDITIONAL_CONFIG_KEY, SchedulerSettings

NAME = "replicas.scheduler.PriorityScheduler"


def check_configuration(vllm_config: VllmConfig) -> None:
    """Raise ValueError for an engine in which the scheduler would not keep class order."""
    policy = vllm_config.scheduler_config.policy
    if policy != "priority":
        raise ValueError(f"{NAME} needs scheduling policy 'priority' (--scheduling-policy priority), got {policy!r}")
    if vllm_config.model_config.is_diffusion:
        raise ValueError(f"{NAME} cannot serve the diffusion model {vllm_config.model_config.model!r}")


def read_settings(vllm_config: VllmConfig) -> SchedulerSettings:
    """The settings in `additional_config`, or the defaults; ValueError names what is wrong."""
    additional = vllm_config.additional_config
    found = additional.get(ADDITIONAL_CONFIG_KEY) if isinstance(additional, dict) else None
    if found is None:
        return SchedulerSettings()
    try:
        return SchedulerSettings.model_validate(found)
    except ValueError as error:
        raise ValueError(f"additional_config[{ADDITIONAL_CONFIG_KEY!r}] is wrong: {error}") from error

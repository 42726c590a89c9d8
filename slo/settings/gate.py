"""Settings of the gate: how much each class may have in flight and in the queue, and who may ask for what."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, field_validator

from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup

SHA256_PATTERN: Final = r"^[0-9a-f]{64}$"


class ClassAdmission(SettingsGroup):
    """One class at the gate. In flight: handed to an engine, running or waiting there.

    A sequence is one answer that an engine generates: a request with `n: 4` is four.
    """

    queue_timeout_s: float = Field(
        gt=0,
        description="A request that has waited so long at the gate expires, and one that would is refused at once, "
        "seconds.",
    )
    max_in_flight: int | None = Field(
        None,
        ge=1,
        description="Sequences in flight for each replica, at most. Null: engine.max_num_seqs and "
        "admission.ahead_ratio more, and as many for a surplus (admission.unshared_ratio).",
    )
    max_in_flight_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in flight for each replica, at most, by estimate (prompt and answer). Null: the sequences "
        "times engine.max_model_len, or times 32,768 where that is null, and as many for a surplus.",
    )
    max_queued: int | None = Field(
        None,
        ge=0,
        description="Sequences that wait in one ingress process, at most; a more urgent class may take this room too. "
        "Null: of ingress.max_ongoing_requests a sixteenth (P0), an eighth (P1) or a quarter (P2).",
    )
    max_queued_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens that wait in one ingress process, at most, by estimate. Null: 8,192 for each sequence of "
        "max_queued.",
    )


class AdmissionSettings(SettingsGroup):
    """What the gate admits, queues and refuses. docs/tenants.md tells the rules."""

    p0: ClassAdmission = ClassAdmission(queue_timeout_s=2)
    p1: ClassAdmission = ClassAdmission(queue_timeout_s=30)
    p2: ClassAdmission = ClassAdmission(queue_timeout_s=300)
    ahead_ratio: float = Field(
        0.25,
        ge=0,
        description="Sequences of a class that an engine is handed beyond its run slots, as a share of them: enough to "
        "fill a slot in the step in which it falls free. What is more waits here, where it is shared fairly.",
    )
    unshared_ratio: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Run slots that P0, and P1, may fill whoever asks, as a share of them. Beyond that, what a tenant "
        "has above its share is surplus: it counts as one class less for the engines, and yields to the requests of "
        "other tenants. While one of several tenants asks alone it has half of the other slots too, and no share is "
        "larger, nor may surplus fill more of a limit that is set. 1: nothing is surplus.",
    )
    max_wait_ratio: float = Field(
        0.8,
        gt=0,
        le=1,
        description="A request is refused at once when its estimated wait exceeds this share of queue_timeout_s; the "
        "rest is for the error of the estimate. Source: simulated, a class at 3 times the fleet's capacity: of those "
        "let in, 10 % expired with 1, 0.5 % with 0.8.",
    )
    default_output_tokens: int = Field(
        256, ge=1, description="Counted for the answer of a request without max_tokens, tokens."
    )
    bytes_per_token: float = Field(
        4,
        gt=0,
        description="Bytes of a request's body counted as one token of its prompt. Source: OpenAI's rule of thumb, "
        "about 4 characters of English.",
    )
    max_held_bytes: int = Field(
        512 * 2**20,
        gt=0,
        description="Request bodies in one ingress process, queued and in flight, at most, bytes as sent.",
    )
    rate_window_s: float = Field(
        30, gt=0, description="The service rate is measured over about so much time in which a class waited, seconds."
    )
    replicas_period_s: float = Field(
        1, gt=0, description="How often an ingress process asks how many replicas run, seconds."
    )
    max_retry_after_s: float = Field(
        120,
        ge=1,
        description="Retry-After is at most this, seconds. Source: OpenAI's client (2.x) gives up when told to wait "
        "longer.",
    )

    def of(self, priority: PriorityClass) -> ClassAdmission:
        """The settings of `priority`."""
        return {PriorityClass.P0: self.p0, PriorityClass.P1: self.p1, PriorityClass.P2: self.p2}[priority]


class TenantSettings(SettingsGroup):
    """API keys and what each may do."""

    keys_file: str | None = Field(
        None,
        min_length=1,
        description="Absolute path of the YAML file of tenants and their keys' hashes, on every machine with an "
        "ingress. Null: no keys, open to everyone who reaches the port.",
    )
    reload_period_s: float = Field(2, gt=0, description="How often the file is looked at for changes, seconds.")
    above_class: Literal["lower", "refuse"] = Field(
        "lower",
        description="A class above the key's highest: lowered to that, and told in a header, or refused (403). A "
        "tenant's own above_class goes first.",
    )
    operator_key_sha256: str | None = Field(
        None,
        pattern=SHA256_PATTERN,
        description="SHA-256 of the key for /metrics, /status, /v1/status and /v1/alerts, 64 hex digits, as "
        "`expresslane keys` prints it. Null: they are open.",
    )

    @field_validator("keys_file")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must be an absolute path: the ingress does not run where the settings were written")
        return value

"""Settings of what happens when an engine or a replica is lost."""

from __future__ import annotations

from pydantic import Field

from slo.settings.base import SettingsGroup


class FaultSettings(SettingsGroup):
    """How a lost engine is found, and what becomes of its requests."""

    stall_timeout_s: float = Field(
        20,
        gt=0,
        description="An engine that owes a word for longer than this is taken for frozen: it is killed, and its "
        "replica replaced, seconds. It must exceed the longest single step: the engine speaks between steps. Source: a "
        "prefill step of 2,048 tokens took 2.5 s on 2 CPU cores (measured); one that compiles kernels takes longer.",
    )
    max_attempts: int = Field(
        4,
        ge=1,
        description="Replicas that one request is given, the first included, however far it came. 1: an answer whose "
        "replica is lost ends with an error. A bound, so that a request that kills its engine does not kill a fleet's.",
    )
    replacement_timeout_s: float = Field(
        120,
        ge=0,
        description="How long a request whose replica was lost waits for one that answers, seconds. Only a fleet that "
        "has lost its last one waits, and then as long as a start takes: 18 to 24 s on 2 idle CPU cores (measured), "
        "several times that on busy ones, five minutes for a large model (reported to AIBrix). Who waits costs memory "
        "alone, and its client may leave at any time.",
    )

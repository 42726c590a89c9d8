"""Settings of the request router: by which numbers a replica is chosen, and how old they may be."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from slo.settings.base import SettingsGroup


class RoutingSettings(SettingsGroup):
    """How the ingress chooses the replica of a request. docs/routing.md tells the rules."""

    enabled: bool = Field(
        True,
        description="False: Ray Serve's own router, which compares the number of requests of two replicas and knows no "
        "class.",
    )
    stats_period_s: float = Field(
        0.5,
        gt=0,
        description="How often each replica tells what it has under way, seconds; Serve's default is 10. Measured: "
        "with 0.5 the numbers are 0.3 s old at the median when they are used.",
    )
    stale_after_s: float = Field(
        3,
        gt=0,
        description="What a replica told longer ago is absent, seconds: what this ingress has in flight there decides, "
        "and other ingresses' requests are taken for as many as elsewhere.",
    )
    slow_step_s: float = Field(
        0.05,
        gt=0,
        description="A replica whose engine steps take longer than this, seconds, comes after one with quicker steps "
        "for P0 and P1, the rest being equal: who arrives waits for the step in flight. Half of P0's TTFT target.",
    )
    backlog_tokens: int = Field(
        2048,
        ge=1,
        description="Prompt tokens that are still to be read before a request's own, in steps of this many: a replica "
        "with fewer such steps comes first. The largest default token budget of a step (scheduler.profiles).",
    )
    prefix_entries: int = Field(
        65536,
        ge=0,
        description="Prefixes of prompts that an ingress process remembers, each with the replicas that read it last; "
        "about 10 a request. 65,536 take some 15 MB. 0: no conversation is kept where its prefix lies.",
    )
    min_prefix_chars: int = Field(
        256,
        ge=1,
        description="A shorter common prefix is no reason to prefer a replica, characters: 256 are about 64 tokens, "
        "four KV blocks on a GPU.",
    )
    prefix_extra_load_ratio: float = Field(
        0.25,
        ge=0,
        description="How much fuller than the emptiest a replica may be for a prefix to count, as a share of the run "
        "slots; it must be no other kind of wait in any case. Otherwise one system prompt would fill one replica.",
    )

    @model_validator(mode="after")
    def _numbers_come_before_they_are_stale(self) -> Self:
        if self.stale_after_s < 2 * self.stats_period_s:
            raise ValueError(
                f"stale_after_s={self.stale_after_s:g} must be at least twice stats_period_s={self.stats_period_s:g}, "
                "or what replicas tell is absent most of the time"
            )
        return self

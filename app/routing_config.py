"""Ray Serve's configuration of the replica deployment's router."""

from __future__ import annotations

from dataclasses import asdict

from ray.serve.config import RequestRouterConfig

from app.routing_policy import RoutingRules
from slo.settings import Settings

ROUTER_PATH = "app.router.ClassAwareRouter"


def request_router_config(settings: Settings) -> RequestRouterConfig:
    """For the replica deployment; Serve's own router where `routing.enabled` is false."""
    routing = settings.routing
    if not routing.enabled:
        return RequestRouterConfig()
    rules = RoutingRules(
        slots=settings.engine.max_num_seqs,
        can_preempt=settings.scheduler.preemption.enabled,
        slow_step_s=routing.slow_step_s,
        backlog_tokens=routing.backlog_tokens,
        min_prefix_chars=routing.min_prefix_chars,
        prefix_extra_load_ratio=routing.prefix_extra_load_ratio,
    )
    return RequestRouterConfig(
        request_router_class=ROUTER_PATH,
        request_router_kwargs={
            "rules": asdict(rules),
            "stale_after_s": routing.stale_after_s,
            "prefix_entries": routing.prefix_entries,
            "chars_per_token": settings.admission.bytes_per_token,
            "base_names": list(settings.model.served_names),
        },
        request_routing_stats_period_s=routing.stats_period_s,
    )

"""Mutations tried by hand, each found by a test here: the tellings at Serve's own period; preemption taken for granted;
the class not found under its path."""

from __future__ import annotations

from app.routing_config import ROUTER_PATH, request_router_config
from app.routing_policy import RoutingRules
from slo.settings import parse_settings


def test_config_names_our_router_with_its_rules() -> None:
    settings = parse_settings(
        {
            "engine": {"max_num_seqs": 7},
            "scheduler": {"preemption": {"enabled": False}},
            "routing": {"stats_period_s": 0.25, "stale_after_s": 2, "prefix_entries": 5, "backlog_tokens": 9},
        }
    )
    config = request_router_config(settings)
    assert config.request_router_class == ROUTER_PATH
    assert config.get_request_router_class().__name__ == "ClassAwareRouter"
    assert config.request_routing_stats_period_s == 0.25
    arguments = dict(config.request_router_kwargs)
    assert RoutingRules(**arguments.pop("rules")) == RoutingRules(7, False, 0.05, 9, 256, 0.25)
    assert arguments == {
        "stale_after_s": 2,
        "prefix_entries": 5,
        "chars_per_token": 4,
        "base_names": ["SmolLM2-135M-Instruct"],
    }


def test_config_leaves_serves_router_where_routing_is_off() -> None:
    config = request_router_config(parse_settings({"routing": {"enabled": False}}))
    assert config.is_default_request_router()

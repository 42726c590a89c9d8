from typing import Any

import pytest

from slo.settings import RoutingSettings, Settings, SettingsError, parse_settings


def test_routing_is_on_and_its_numbers_are_fresh_unless_set() -> None:
    assert Settings().routing == RoutingSettings()
    assert (RoutingSettings().enabled, RoutingSettings().stats_period_s) == (True, 0.5)


def test_slow_step_is_half_of_the_urgent_ttft_target() -> None:
    settings = Settings()
    assert settings.scheduler.targets.p0.ttft_p99_ms == 2 * 1000 * settings.routing.slow_step_s


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stats_period_s": 0}, "routing.stats_period_s=0: "),
        ({"stale_after_s": 0.9}, "routing: stale_after_s=0.9 must be at least twice stats_period_s=0.5"),
        ({"prefix_entries": -1}, "routing.prefix_entries=-1: "),
        ({"min_prefix_chars": 0}, "routing.min_prefix_chars=0: "),
        ({"backlog_tokens": 0}, "routing.backlog_tokens=0: "),
        ({"prefix_extra_load_ratio": -0.1}, "routing.prefix_extra_load_ratio=-0.1: "),
        ({"router": "x"}, "routing.router: unknown key"),
    ],
)
def test_routing_settings_are_refused_with_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"routing": values})
    assert str(raised.value).startswith(message)

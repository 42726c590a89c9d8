"""How what a scheduler tells about itself reaches the replica: inside vLLM's own statistics, as plain values.

The scheduler lives in the engine core's process. vLLM sends its `SchedulerStats` to the replica's process after each
step, and one of its fields is a dict that vLLM passes on unread. Both ends are here, so that neither knows the other.
The scheduler sends only where `ask_for_statistics` said so: vLLM's own loggers take the dict for a KV connector's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from slo.snapshots import EngineSnapshot

STATISTICS_KEY = "expresslane_statistics"
"""In `additional_config`: whether the scheduler sends. In vLLM's statistics: what it sends."""


class CarrierStats(Protocol):
    """What is used of vLLM's `SchedulerStats`."""

    kv_connector_stats: dict[str, Any] | None


def ask_for_statistics(additional_config: Mapping[str, Any]) -> dict[str, Any]:
    """`additional_config` for an engine whose replica reads the statistics. The same for every engine: vLLM keeps
    compiled models by a hash of it."""
    return {**additional_config, STATISTICS_KEY: True}


def is_asked_for_statistics(additional_config: object) -> bool:
    """Called by the scheduler, with whatever the engine was given."""
    return isinstance(additional_config, dict) and additional_config.get(STATISTICS_KEY) is True


def put(snapshot: EngineSnapshot, stats: CarrierStats) -> None:
    """Adds `snapshot` to what vLLM sends; a connector's own statistics stay beside it."""
    payload = msgspec.to_builtins(snapshot, str_keys=True)
    stats.kv_connector_stats = {**(stats.kv_connector_stats or {}), STATISTICS_KEY: payload}


def take(stats: CarrierStats) -> EngineSnapshot | None:
    """The snapshot in `stats`, if there is one. Takes it out, so that the loggers that come next find what they expect:
    a connector's statistics, or None."""
    if stats.kv_connector_stats is None or STATISTICS_KEY not in stats.kv_connector_stats:
        return None
    payload = stats.kv_connector_stats[STATISTICS_KEY]
    others = {key: value for key, value in stats.kv_connector_stats.items() if key != STATISTICS_KEY}
    stats.kv_connector_stats = others or None
    return msgspec.convert(payload, EngineSnapshot, str_keys=True)

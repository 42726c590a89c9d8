"""Thresholds of the alerts."""

from __future__ import annotations

from pydantic import Field

from slo.settings.base import SettingsGroup


class AlertSettings(SettingsGroup):
    """When each alert fires (source: design table)."""

    tbt_breach_ratio: float = Field(2, gt=1, description="tbt_breach: TBT P99 over this many times its target ...")
    tbt_breach_periods: int = Field(3, ge=1, description="... in so many periods in a row.")
    preemption_storm_per_minute: float = Field(10, gt=0, description="preemption_storm: preemptions a minute.")
    low_batching_gpu_ratio: float = Field(0.60, gt=0, lt=1, description="low_batching: GPU utilisation below ...")
    low_batching_waiting: int = Field(100, ge=1, description="... while more requests than this wait.")
    ttft_high_ms: float = Field(1000, gt=0, description="ttft_high: TTFT P99 above this, milliseconds.")
    kv_hit_low_ratio: float = Field(
        0.95, gt=0, le=1, description="kv_hit_low: hits among blocks that could have hit, below this."
    )
    max_fragmentation_ratio: float = Field(
        0.04, gt=0, lt=1, description="Share of allocated KV slots that hold no token; the expected bound."
    )

"""Limits of moving a victim's KV to host memory."""

from __future__ import annotations

from pydantic import Field

from slo.settings.base import SettingsGroup


class SwapSettings(SettingsGroup):
    """KV swap (source: design table)."""

    host_bytes: int = Field(32 * 2**30, ge=0, description="Host memory for swapped KV, bytes; 0: no swap.")
    max_move_ms: float = Field(
        50, gt=0, description="A move estimated above this is given up, and the urgent request queues, milliseconds."
    )

"""What all contenders of a comparison have in common: the model, and the sizes of the engine that serves it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import psutil
from pydantic import Field

from replicas.engine import (
    CPU_KV_BLOCK_TOKENS,
    DEFAULT_CPU_KV_CACHE_BYTES,
    GPU_KV_BLOCK_TOKENS,
    is_cpu_build,
    resolve_dtype,
)
from replicas.models.default import ensure_default_model
from slo.settings.base import SettingsGroup
from slo.settings.serving import DEFAULT_MODEL

DEFAULT_SLOTS: Final = 8


class Sizes(SettingsGroup):
    """Of each contender's engine."""

    model: str = Field(DEFAULT_MODEL, min_length=1, description="A local directory, a hub name, or `default`.")
    slots: int = Field(DEFAULT_SLOTS, ge=1, description="Requests that may run at once.")
    threads: int | None = Field(
        None, ge=1, description="OpenMP threads of an engine on CPUs. Null: one less than there are cores."
    )
    kv_cache_bytes: int = Field(DEFAULT_CPU_KV_CACHE_BYTES, ge=1, description="KV cache, bytes.")
    block_tokens: int | None = Field(None, ge=1, description="Tokens of a KV block. Null: 16 on a GPU, 32 on CPUs.")
    dtype: str = Field("auto", min_length=1, description="As `engine.dtype`, for each of them.")
    enforce_eager: bool | None = Field(None, description="No compilation. Null: true on CPUs alone.")

    def provided(self, directory: str, port: int) -> dict[str, str]:
        """A value for each of `bench.compare.contender.PROVIDED`.

        Raises:
            ModelPreparationError: the default model cannot be prepared.
        """
        on_cpus = is_cpu_build()
        eager = on_cpus if self.enforce_eager is None else self.enforce_eager
        values: Mapping[str, object] = {
            "port": port,
            "python": sys.executable,
            "directory": directory,
            "model": ensure_default_model() if self.model == DEFAULT_MODEL else self.model,
            "slots": self.slots,
            "threads": self.threads or max(1, (psutil.cpu_count() or 1) - 1),
            "kv_cache_bytes": self.kv_cache_bytes,
            "block_tokens": self.block_tokens or (CPU_KV_BLOCK_TOKENS if on_cpus else GPU_KV_BLOCK_TOKENS),
            "dtype": resolve_dtype(self.dtype),
            "enforce_eager": "true" if eager else "false",
        }
        return {name: str(value) for name, value in values.items()}

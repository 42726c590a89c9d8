"""Limits of moving a victim's KV out of the device, and where it may go."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup

DEFAULT_HOST_BYTES: Final = 32 * 2**30
"""Host memory for swapped KV on a GPU unless set. Source: own choice."""
DEFAULT_CPU_HOST_BYTES: Final = 256 * 2**20
"""The same on the CPU backend, where KV and host memory are one: a quarter of its default KV cache."""
MAX_DEFAULT_SHARE: Final = 0.5
"""Unless set, host memory for swapped KV is at most this share of what is available."""


class HostMemoryError(ValueError):
    """The machine has not the host memory that was asked for. The message names key, value and what there is."""


class SwapSettings(SettingsGroup):
    """KV swap: victims' KV goes to host memory and comes back. Source of the defaults: own choice."""

    host_bytes: int | None = Field(
        None,
        ge=0,
        description="Host memory for swapped KV of one engine, divided among its workers, bytes; 0: no swap. Null: "
        "32 GiB on a GPU, 256 MiB on the CPU backend, and at most half of what the machine has available.",
    )
    max_move_ms: float = Field(
        50, gt=0, description="A move estimated above this is given up; `over_limit` says what then, milliseconds."
    )
    over_limit: Literal["queue", "recompute"] = Field(
        "queue",
        description="Over max_move_ms: the urgent request queues and nobody yields, or the victim yields at once and "
        "is recomputed later. Source: own choice.",
    )
    directory: str | None = Field(
        None,
        min_length=1,
        description="Absolute path of a directory for victims beyond host_bytes; it may be on a shared file system. "
        "Null: none, they are recomputed.",
    )
    directory_bytes: int | None = Field(
        None, gt=0, description="Files in `directory` of one engine, all its workers' together, at most, bytes."
    )

    @field_validator("directory")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must be an absolute path: the engine does not run where the settings were written")
        return value

    @model_validator(mode="after")
    def _directory_has_a_bound_and_host_memory_before_it(self) -> Self:
        if (self.directory is None) != (self.directory_bytes is None):
            raise ValueError(
                f"directory={self.directory!r} and directory_bytes={self.directory_bytes} belong together: set both or "
                "neither"
            )
        if self.directory is not None and self.host_bytes == 0:
            raise ValueError(
                f"directory={self.directory!r} with host_bytes=0: the directory takes what host memory has no room for"
            )
        return self

    def resolve(self, cpu: bool, available_bytes: int) -> Self:
        """These settings with `host_bytes` set, for this machine. Pure.

        Args:
            cpu: whether the engine runs on the CPU backend.
            available_bytes: host memory that can still be used.

        Raises:
            HostMemoryError: `host_bytes` was set, and there is not as much.
        """
        if self.host_bytes is None:
            default = DEFAULT_CPU_HOST_BYTES if cpu else DEFAULT_HOST_BYTES
            host_bytes = min(default, int(available_bytes * MAX_DEFAULT_SHARE))
            no_directory = {} if host_bytes else {"directory": None, "directory_bytes": None}  # it comes after memory
            return self.model_copy(update={"host_bytes": host_bytes, **no_directory})
        check_host_memory(self.host_bytes, available_bytes)
        return self

    def as_plain(self) -> dict[str, Any]:
        """Plain JSON values, since settings cross processes inside vLLM's own; `SwapSettings(**values)` reads them."""
        return self.model_dump(mode="json")


def check_host_memory(host_bytes: int, available_bytes: int) -> None:
    """Refuses host memory that is not there.

    Raises:
        HostMemoryError: `host_bytes` exceeds `available_bytes`.
    """
    if host_bytes > available_bytes:
        raise HostMemoryError(
            f"swap.host_bytes={host_bytes} ({host_bytes / 2**30:.1f} GiB) exceeds the host memory available here, "
            f"{available_bytes} bytes ({available_bytes / 2**30:.1f} GiB): set it lower, or to 0 for no swap"
        )

"""How busy this replica's GPUs are, as NVML tells it.

Owns the handles of the devices that the process may use, and no others: several replicas share a machine. Refuses to
guess: a GPU that NVML cannot read (one shared by MIG has no utilisation) is left out, and where there is no NVML there
are no GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from slo.snapshots import GpuUse

logger = logging.getLogger("expresslane.replica")

VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""Ray sets it for an actor that reserves GPUs: numbers or UUIDs, divided by commas."""


class GpuReader:
    """Reads the visible GPUs of one process. `read` waits for the driver, and may be called in any thread."""

    def __init__(self, visible_devices: str | None) -> None:
        """Args:
        visible_devices: as in CUDA_VISIBLE_DEVICES; None where that is not set, which makes all visible. Numbers are
            taken as NVML's, by PCI bus, as vLLM takes them.
        """
        self._nvml = _load_nvml()
        self._handles = [] if self._nvml is None else list(self._find(visible_devices))
        self._unreadable: set[int] = set()

    def read(self) -> tuple[GpuUse, ...]:
        """Each GPU's use now; its utilisation is NVML's, over the last 1/6 to 1 s."""
        uses = (self._read(position, handle) for position, handle in enumerate(self._handles))
        return tuple(use for use in uses if use is not None)

    def _find(self, visible_devices: str | None) -> Iterator[Any]:
        if visible_devices is None:
            names = [str(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        else:
            names = [name.strip() for name in visible_devices.split(",")]
        for name in names:
            try:
                if name.isdecimal():
                    yield self._nvml.nvmlDeviceGetHandleByIndex(int(name))
                else:
                    yield self._nvml.nvmlDeviceGetHandleByUUID(name)
            except self._nvml.NVMLError:
                return  # CUDA shows none of a list from the first wrong name on; "" and "-1" are such names.

    def _read(self, position: int, handle: Any) -> GpuUse | None:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            return GpuUse(
                index=nvml.nvmlDeviceGetIndex(handle),
                utilisation_ratio=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                memory_used_bytes=memory.used,
                memory_bytes=memory.total,
            )
        except nvml.NVMLError as error:
            if position not in self._unreadable:
                self._unreadable.add(position)
                logger.warning("gpu=%d reason=%r", position, f"NVML cannot read it: {error}")
            return None


def _load_nvml() -> Any:
    """NVML's bindings, initialized; None where there are none (the CPU build of vLLM) or no driver."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml

"""GPUs by name, as their vendor's data sheets give them: peaks. What is reached of them is in `sim.roofline`.

Compared in November 2026 with what others quote of the data sheets (`source`); those themselves could not be opened.
Links are quoted as the sum of both directions, and halved here. The L4's tensor figure was found only as computed from
its boost clock, 125: 121 is half of what its data sheet is remembered to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        flops_per_s: of dense BF16 products in its tensor cores. Data sheets that print the figure "with sparsity" are
            halved.
        bytes_per_s: of its memory.
        memory_bytes: as vendors count, a thousand million to a GB.
        host_bytes_per_s: to host memory and back, in each direction: of its PCIe link.
        link_bytes_per_s: to the other GPUs of its machine, in each direction; None: only by way of the host.
        source: where the figures were seen.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    host_bytes_per_s: float
    link_bytes_per_s: float | None
    source: str


GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "H100",
            989.5e12,
            3.35e12,
            80e9,
            64e9,
            450e9,
            "NVIDIA data sheet, by glennklockwood.com/garden/processors/h100",
        ),
        Gpu(
            "H200",
            989.5e12,
            4.8e12,
            141e9,
            64e9,
            450e9,
            "NVIDIA data sheet, by aiminingco.com/gpu/h200/specs; as the H100",
        ),
        Gpu(
            "A100",
            312e12,
            2.039e12,
            80e9,
            32e9,
            300e9,
            "NVIDIA data sheet, by glennklockwood.com/garden/processors/A100",
        ),
        Gpu(
            "L4",
            121e12,
            0.3e12,
            24e9,
            32e9,
            None,
            "hmc-tech.com/gpu/nvidia-l4-vs-nvidia-a100-40gb, fpsbench.com; TFLOPS assumed",
        ),
    )
}

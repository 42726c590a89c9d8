"""How many Kubernetes pods a fleet needs, and how large: pure, from the settings.

One worker pod is one Ray node. It holds one replica; several, where they share a GPU; or one stage of the pipeline,
where an engine lies on several machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Final

from replicas.placement import plan_placement
from slo.settings import Settings
from slo.settings.swap import DEFAULT_CPU_HOST_BYTES, DEFAULT_HOST_BYTES

GIB: Final = 2**30
CPUS_PER_GPU: Final = 4
"""For an engine core, its workers and their tokenizing; as cloud machines have them beside a GPU."""
REPLICA_MEMORY_GIB: Final = {"gpu": 32, "cpu": 6}
"""Host memory of one engine's processes beside swapped KV and the KV cache of the CPU backend. Source: estimate; on the
CPU backend with the default model two processes, of 0.8 and 1.4 GiB, were seen."""
SMALL_CPUS: Final = 0.5
"""For what Ray itself puts on each node (the proxy, Serve's own actors) and a share of the ingress."""


class Backend(Enum):
    """Which build of vLLM the image has."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class WorkerPods:
    """The group of worker pods.

    Attributes:
        memory_gib: asked for and the limit, GiB: swapped KV is pinned, so none of it can be lent.
    """

    min_pods: int
    max_pods: int
    start_pods: int
    num_gpus: int
    num_cpus: int
    memory_gib: int
    accelerator_type: str | None


def plan_pods(settings: Settings, backend: Backend) -> WorkerPods:
    """The worker pods that the fleet's bounds need."""
    engine, replicas, bounds = settings.engine, settings.replicas, settings.replica_bounds
    placement = plan_placement(engine, replicas, backend is Backend.CPU)
    num_gpus: float = placement.num_gpus
    pods_per_replica = 1
    if engine.multi_node:
        num_gpus, pods_per_replica = engine.tensor_parallel_size, engine.pipeline_parallel_size
    replicas_per_pod = int(1 / num_gpus) if 0 < num_gpus < 1 else 1

    def pods(num_replicas: int) -> int:
        return ceil(num_replicas * pods_per_replica / replicas_per_pod)

    gpus = ceil(num_gpus)
    own_cpus = ceil(replicas.num_cpus * replicas_per_pod + settings.ingress.num_cpus + SMALL_CPUS)
    return WorkerPods(
        min_pods=pods(bounds.min_replicas),
        max_pods=pods(bounds.max_replicas),
        start_pods=pods(replicas.num_replicas),
        num_gpus=gpus,
        num_cpus=max(own_cpus, CPUS_PER_GPU * max(gpus, 1)),
        memory_gib=replicas_per_pod * _replica_memory_gib(settings, backend, gpus),
        accelerator_type=replicas.accelerator_type,
    )


def _replica_memory_gib(settings: Settings, backend: Backend, num_gpus: int) -> int:
    is_cpu = backend is Backend.CPU
    swap_bytes = settings.swap.host_bytes
    if swap_bytes is None:
        # Half of what there is, at most, is taken where nothing is set: so that much again must be there.
        swap_bytes = 2 * (DEFAULT_CPU_HOST_BYTES if is_cpu else DEFAULT_HOST_BYTES)
    kv_bytes = (settings.engine.kv_cache_bytes or GIB) if is_cpu else 0
    return REPLICA_MEMORY_GIB[backend.value] * max(num_gpus, 1) + ceil((swap_bytes + kv_bytes) / GIB)

"""Where Ray puts one replica and its engine's workers: a pure function from settings to Serve's options.

    one device            the replica's actor reserves it                      vLLM runs its worker itself
    several, one machine  the actor reserves them all: Ray never divides what  vLLM starts a process for each ("mp")
                          one actor reserves between machines
    several machines      a placement group, a bundle for each device; the     vLLM starts a Ray actor in each ("ray"),
                          actor sits in the first and reserves no GPU itself   and finds the group that it runs in

vLLM 0.32 takes no bundle with more than one GPU, so a group cannot say "eight on this machine, eight on that". PACK
fills a machine before it goes to the next, and vLLM numbers its workers machine by machine: a tensor-parallel group
stays on one machine as long as each has a multiple of its size free. vLLM warns where that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from slo.settings import EngineSettings, ReplicaSettings

ACCELERATOR_SHARE: Final = 0.001
"""What a bundle asks of the resource that Ray gives a machine for its accelerator's type: so little never runs out."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What one replica reserves.

    Attributes:
        num_gpus: reserved by the replica's actor itself.
        accelerator_type: Ray's name, for the actor; in `bundles` it is there already.
        bundles: of the placement group; empty: none, the actor's own reservation is all.
    """

    num_cpus: float
    num_gpus: float
    accelerator_type: str | None = None
    bundles: tuple[dict[str, float], ...] = ()

    def as_options(self) -> dict[str, Any]:
        """The options of `serve.deployment`."""
        actor: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.accelerator_type is not None:
            actor["accelerator_type"] = self.accelerator_type
        if not self.bundles:
            return {"ray_actor_options": actor}
        return {
            "ray_actor_options": actor,
            "placement_group_bundles": [dict(bundle) for bundle in self.bundles],
            "placement_group_strategy": "PACK",
        }


def plan_placement(engine: EngineSettings, replicas: ReplicaSettings, cpu: bool) -> Placement:
    """The placement of each replica. `cpu`: whether the CPU build of vLLM is installed."""
    if engine.multi_node:
        device: dict[str, float] = {"GPU": 1}
        if replicas.accelerator_type is not None:
            device[f"accelerator_type:{replicas.accelerator_type}"] = ACCELERATOR_SHARE
        first = {**device, "CPU": replicas.num_cpus} if replicas.num_cpus else device
        bundles = (first, *(dict(device) for _ in range(engine.num_devices - 1)))
        return Placement(replicas.num_cpus, 0, bundles=bundles)
    num_gpus = replicas.num_gpus
    if num_gpus is None:
        num_gpus = 0 if cpu and replicas.accelerator_type is None else engine.num_devices
    return Placement(replicas.num_cpus, num_gpus, replicas.accelerator_type)


def executor_backend(engine: EngineSettings) -> str:
    """Who starts the workers of an engine of several devices, as vLLM's `distributed_executor_backend`.

    Always told: left to itself, vLLM would take Ray on one machine too, if it found itself in a placement group.
    """
    return "ray" if engine.multi_node else "mp"

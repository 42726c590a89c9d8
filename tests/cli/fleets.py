"""Serve configs, and the Kubernetes objects made of them."""

from __future__ import annotations

from typing import Any

from cli.config import config_for
from cli.kuberay import ClusterOptions, manifests
from cli.pods import Backend

OPTIONS = ClusterOptions("registry.example.com/expresslane:1.2.3", Backend.GPU, ("edge",))


def objects_of(options: ClusterOptions = OPTIONS, **settings: Any) -> dict[str, dict[str, Any]]:
    """The objects by kind and name."""
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in manifests(config_for(settings, 8000), options)}


def cluster_of(options: ClusterOptions = OPTIONS, **settings: Any) -> dict[str, Any]:
    """The RayService's cluster."""
    cluster: dict[str, Any] = objects_of(options, **settings)["RayService/expresslane"]["spec"]["rayClusterConfig"]
    return cluster


def pods_of(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod specs of a cluster, by role."""
    (workers,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"]["template"]["spec"], "worker": workers["template"]["spec"]}

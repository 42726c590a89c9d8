"""The application as objects of Kubernetes, for the KubeRay operator (1.6) and the Prometheus operator: pure.

The Serve config is embedded as it is, so that Kubernetes deploys what `serve deploy` would; everything else is derived
from its settings. What it refuses to guess (image, namespaces, a volume for models) is asked for in `ClusterOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from autoscale.prometheus_rules import rule_file
from cli import haproxy
from cli.config import ConfigError, port_of, settings_of
from cli.pods import Backend, plan_pods
from slo.settings import Settings
from slo.settings.models import slug

NAME: Final = "expresslane"
LABELS: Final = {"app": NAME}
WORKERS: Final = "workers"
CACHE_PATH: Final = "/cache"
DASHBOARD_PORT: Final = 8265
HEAD_CPUS: Final = 4
HEAD_MEMORY: Final = "8Gi"
IDLE_NODE_S: Final = 600
"""A node that has been empty for so long goes: longer than the quiet time before a second replica goes (300 s)."""
USER: Final = 1000
"""The image's user."""
TENANTS_SECRET, OPERATOR_SECRET, HUB_SECRET = f"{NAME}-tenants", f"{NAME}-operator", "hugging-face"
IMAGE_ENVIRONMENT: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    haproxy.BINARY_VARIABLE: "/usr/local/bin/expresslane-haproxy",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HOME": f"{CACHE_PATH}/huggingface",
    "XDG_CACHE_HOME": CACHE_PATH,
    "XDG_DATA_HOME": f"{CACHE_PATH}/data",
}
"""What each of Ray's processes must find from its start, beside `haproxy.settings`; the image has both too."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the settings do not tell.

    Attributes:
        image: with a tag; head and workers have the same one.
        client_namespaces: from where the application's port may be reached.
        cache_claim: a PersistentVolumeClaim for models, which pods on several nodes can mount; None: each pod loads its
            own copy.
        adapters_claim: one with the adapters, mounted at `engine.adapters_dir`; needed where that is set. Of several
            models each has its directory in it, named as its group of workers is after `workers-`.
    """

    image: str
    backend: Backend
    client_namespaces: tuple[str, ...]
    cache_claim: str | None = None
    adapters_claim: str | None = None


def manifests(config: dict[str, Any], options: ClusterOptions) -> list[Object]:
    """All objects, for a config that `cli.config.load_config` gave.

    Raises:
        ConfigError: `engine.adapters_dir` is set, and `options` name no claim with it.
    """
    settings = settings_of(config)
    for of_model in settings.by_model.values():
        if (directory := of_model.engine.adapters_dir) is not None and options.adapters_claim is None:
            raise ConfigError(f"args: engine.adapters_dir={directory!r}: name the volume with it by --adapters-claim")
    return [
        _ray_service(config, settings, options),
        _disruption_budget("head", {"minAvailable": 1}),
        _disruption_budget("worker", {"maxUnavailable": 1}),
        _network_policy(port_of(config), options.client_namespaces),
        _service_monitor(settings, port_of(config)),
        _object("monitoring.coreos.com/v1", "PrometheusRule", NAME, rule_file(settings)),
    ]


def render(objects: list[Object], header: str) -> str:
    """One YAML stream, in a stable order; texts of several lines as they are."""
    return header + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _object(api_version: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}


def _ray_service(config: dict[str, Any], settings: Settings, options: ClusterOptions) -> Object:
    cluster: Object = {
        "rayVersion": metadata.version("ray"),
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": IDLE_NODE_S, "upscalingMode": "Default"},
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head(settings, options, port_of(config)),
        "workerGroupSpecs": _worker_groups(settings, options, port_of(config)),
    }
    spec: Object = {
        # After an upgrade the old cluster's streams may end before it goes.
        "rayClusterDeletionDelaySeconds": int(settings.longest_answer_s),
        "serveConfigV2": yaml.safe_dump(config, sort_keys=False),
        "rayClusterConfig": cluster,
    }
    return _object("ray.io/v1", "RayService", NAME, spec)


def _head(settings: Settings, options: ClusterOptions, port: int) -> Object:
    resources = {"cpu": str(HEAD_CPUS), "memory": HEAD_MEMORY}
    container = _container("ray-head", options, settings, port, resources, {"gcs": 6379, "dashboard": DASHBOARD_PORT})
    return {
        # All interfaces, for the operator sends the Serve config there. The NetworkPolicy closes it to everyone else.
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-gpus": "0"},
        "template": _pod("head", container, settings, options),
    }


def _worker_groups(settings: Settings, options: ClusterOptions, port: int) -> list[Object]:
    """One for each model, whose pods are of its replicas' size."""
    of_models = settings.by_model
    names = {model: WORKERS if len(of_models) == 1 else f"{WORKERS}-{slug(model)}" for model in of_models}
    return [_workers(names[model], of_model, settings, options, port) for model, of_model in of_models.items()]


def _workers(name: str, of_model: Settings, settings: Settings, options: ClusterOptions, port: int) -> Object:
    workers = plan_pods(of_model, options.backend)
    resources = {"cpu": str(workers.num_cpus), "memory": f"{workers.memory_gib}Gi"}
    pod: Object = {}
    if workers.num_gpus:
        resources["nvidia.com/gpu"] = str(workers.num_gpus)
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    start_params = {}
    if workers.accelerator_type is not None:
        # Ray finds the type on a node that runs; its autoscaler has to know it of one that does not run yet.
        start_params["resources"] = f'"{{\\"accelerator_type:{workers.accelerator_type}\\": 1}}"'
    container = _container("ray-worker", options, settings, port, resources, {})
    volumes = []
    if of_model.engine.adapters_dir is not None:
        mount = {"name": "adapters", "mountPath": of_model.engine.adapters_dir, "readOnly": True}
        if name != WORKERS:
            mount["subPath"] = name.removeprefix(f"{WORKERS}-")
        container["volumeMounts"].append(mount)
        volumes = [{"name": "adapters", "persistentVolumeClaim": {"claimName": options.adapters_claim}}]
    return {
        "groupName": name,
        "replicas": workers.start_pods,
        "minReplicas": workers.min_pods,
        "maxReplicas": workers.max_pods,
        "rayStartParams": start_params,
        "template": _pod("worker", container, settings, options, pod, volumes),
    }


def _container(
    name: str, options: ClusterOptions, settings: Settings, port: int, resources: Object, ports: dict[str, int]
) -> Object:
    token = {"secretKeyRef": {"name": HUB_SECRET, "key": "token", "optional": True}}
    variables = IMAGE_ENVIRONMENT | haproxy.settings(settings.longest_answer_s)
    environment = [{"name": key, "value": value} for key, value in variables.items()]
    return {
        "name": name,
        "image": options.image,
        "env": [*environment, {"name": "HF_TOKEN", "valueFrom": token}],
        "ports": [{"name": key, "containerPort": value} for key, value in {**ports, "serve": port}.items()],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE_PATH},
            *({"name": "tenants", "mountPath": str(path.parent), "readOnly": True} for path in _keys_files(settings)),
        ],
    }


def _pod(
    role: str,
    container: Object,
    settings: Settings,
    options: ClusterOptions,
    more: Object | None = None,
    volumes: Sequence[Object] = (),
) -> Object:
    cache = {"persistentVolumeClaim": {"claimName": options.cache_claim}} if options.cache_claim else {"emptyDir": {}}
    tenants = [
        {"name": "tenants", "secret": {"secretName": TENANTS_SECRET, "items": [{"key": path.name, "path": path.name}]}}
        for path in _keys_files(settings)
    ]
    return {
        "metadata": {"labels": {**LABELS, "role": role}},
        "spec": {
            "automountServiceAccountToken": role == "head",  # Ray's autoscaler, in the head's pod, asks Kubernetes
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "cache", **cache}, *tenants, *volumes],
            **(more or {}),
        },
    }


def _keys_files(settings: Settings) -> list[PurePosixPath]:
    """The tenants' file, from a secret: none or one."""
    return [PurePosixPath(settings.tenants.keys_file)] if settings.tenants.keys_file is not None else []


def _disruption_budget(role: str, limit: Object) -> Object:
    selector = {"matchLabels": {**LABELS, "role": role}}
    return _object("policy/v1", "PodDisruptionBudget", f"{NAME}-{role}", {**limit, "selector": selector})


def _network_policy(port: int, client_namespaces: tuple[str, ...]) -> Object:
    """Who may reach the pods: themselves, the operator, and the clients' namespaces at the application's port alone.

    So nobody else reaches the dashboard, Ray's other ports, and HAProxy's statistics and metrics, which are open on
    every interface.
    """
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}}
    clients = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": n}}} for n in client_namespaces]
    rules: list[Object] = [
        {"from": [{"podSelector": {"matchLabels": dict(LABELS)}}]},
        {"from": [operator], "ports": [_tcp(DASHBOARD_PORT), _tcp(port)]},
    ]
    if clients:
        rules.append({"from": clients, "ports": [_tcp(port)]})
    spec = {"podSelector": {"matchLabels": dict(LABELS)}, "policyTypes": ["Ingress"], "ingress": rules}
    return _object("networking.k8s.io/v1", "NetworkPolicy", NAME, spec)


def _tcp(port: int) -> Object:
    return {"protocol": "TCP", "port": port}


def _service_monitor(settings: Settings, port: int) -> Object:
    """Scrapes the service once, not each pod: any of them tells the numbers of the whole fleet.

    Every pod's target gets the service's address and loses the labels of its own, so that Prometheus keeps one.
    """
    endpoint: Object = {
        "port": "serve",
        "path": "/metrics",
        "interval": f"{settings.autoscale.period_s:g}s",
        "relabelings": [
            {
                "sourceLabels": ["__meta_kubernetes_namespace"],
                "targetLabel": "__address__",
                "replacement": f"{NAME}-serve-svc.$1.svc:{port}",
            },
            {"action": "labeldrop", "regex": "pod|container|node|endpoint"},
        ],
    }
    if settings.tenants.operator_key_sha256 is not None:
        endpoint["authorization"] = {"credentials": {"name": OPERATOR_SECRET, "key": "key"}}
    selector = {"matchLabels": {"ray.io/serve": f"{NAME}-serve"}}
    spec = {"selector": selector, "endpoints": [endpoint]}
    return _object("monitoring.coreos.com/v1", "ServiceMonitor", NAME, spec)

"""The objects, by Kubernetes' own schemas, by what Ray's autoscaler reads of them, and by what they are for.

KubeRay's schema is in no package, so that of the RayService is `tests.deploy.ray_service_schema`; no API server has
seen them. Mutations tried by hand, each found by a test here: no token; the dashboard's port open to clients; one
selector for head and workers; root; an unknown key in the RayService; the accelerator left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.serve.schema import ServeDeploySchema

from cli import haproxy
from cli.config import config_for
from cli.kuberay import IMAGE_ENVIRONMENT, ClusterOptions, manifests, render
from cli.pods import Backend
from tests.cli.fleets import OPTIONS, cluster_of, objects_of, pods_of
from tests.deploy.ray_service_schema import RAY_SERVICE

KUBERNETES = "1.33"
EVERYTHING: dict[str, Any] = {
    "engine": {"tensor_parallel_size": 8},
    "replicas": {"accelerator_type": "H100", "num_cpus": 8},
    "autoscale": {"min_replicas": 0, "max_replicas": 12, "period_s": 5, "window_s": 15},
    "tenants": {"keys_file": "/etc/expresslane/tenants.yaml", "operator_key_sha256": "0" * 64},
}
FLEETS = [{}, EVERYTHING, {"engine": {"pipeline_parallel_size": 2, "multi_node": True}}]


@pytest.mark.parametrize("settings", FLEETS)
def test_ray_service_has_no_key_that_kuberay_does_not_know(settings: dict[str, Any]) -> None:
    jsonschema.validate(objects_of(**settings)["RayService/expresslane"], RAY_SERVICE)


@pytest.mark.parametrize("settings", FLEETS)
def test_pods_and_policies_are_ones_that_kubernetes_accepts(settings: dict[str, Any]) -> None:
    objects = objects_of(**settings)
    for spec in pods_of(cluster_of(**settings)).values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    for name in ("PodDisruptionBudget/expresslane-head", "PodDisruptionBudget/expresslane-worker"):
        kubernetes_validate.validate(objects[name], KUBERNETES, strict=True)
    kubernetes_validate.validate(objects["NetworkPolicy/expresslane"], KUBERNETES, strict=True)


def test_kubernetes_schema_refuses_a_misspelt_key() -> None:
    budget = objects_of()["PodDisruptionBudget/expresslane-head"]
    budget["spec"]["minAvailabel"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(budget, KUBERNETES, strict=True)


@pytest.mark.parametrize("settings", FLEETS)
def test_rays_autoscaler_reads_the_cluster(settings: dict[str, Any]) -> None:
    """What runs beside the head in KubeRay: it derives its node types from the cluster, and checks them itself."""
    cluster = cluster_of(**settings)
    cr = {"metadata": {"name": "expresslane-x", "namespace": "default"}, "spec": cluster}
    types = _derive_autoscaling_config_from_ray_cr(cr)["available_node_types"]
    assert types["headgroup"]["resources"]["GPU"] == 0
    assert types["headgroup"]["resources"]["CPU"] > 0, "the controller is pinned to the head"
    (workers,) = cluster["workerGroupSpecs"]
    assert types["workers"]["min_workers"] == workers["minReplicas"]
    assert types["workers"]["max_workers"] == workers["maxReplicas"]


def test_rays_autoscaler_knows_the_accelerator_of_nodes_that_do_not_run_yet() -> None:
    cr = {"metadata": {"name": "x", "namespace": "default"}, "spec": cluster_of(**EVERYTHING)}
    resources = _derive_autoscaling_config_from_ray_cr(cr)["available_node_types"]["workers"]["resources"]
    assert resources["accelerator_type:H100"] == 1
    assert (resources["GPU"], resources["CPU"]) == (8, 32)


def test_serve_config_is_embedded_as_serve_deploys_it() -> None:
    config = config_for({"engine": {"max_num_seqs": 8}}, 9000)
    (ray_service, *_) = manifests(config, OPTIONS)
    embedded = yaml.safe_load(ray_service["spec"]["serveConfigV2"])
    assert embedded == config
    assert ServeDeploySchema.model_validate(embedded).applications[0].external_scaler_enabled


def test_cluster_asks_for_rays_token_and_scales_its_nodes() -> None:
    cluster = cluster_of()
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["rayVersion"] == "2.60.0"


def test_old_cluster_stays_for_as_long_as_a_stream_may_take() -> None:
    replicas = {"max_generation_s": 1000, "graceful_shutdown_timeout_s": 1100}
    assert objects_of(replicas=replicas)["RayService/expresslane"]["spec"]["rayClusterDeletionDelaySeconds"] == 1100


def test_haproxy_and_old_clusters_wait_for_the_model_whose_answers_take_longest() -> None:
    slow = {"max_generation_s": 1000, "graceful_shutdown_timeout_s": 1100}
    models = [{"model": {"source": "org/quick"}}, {"model": {"source": "org/slow"}, "replicas": slow}]
    spec = objects_of(models=models)["RayService/expresslane"]["spec"]
    assert spec["rayClusterDeletionDelaySeconds"] == 1100
    cluster = spec["rayClusterConfig"]
    templates = [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    told = [template["spec"]["containers"][0]["env"] for template in templates]
    for environment in told:
        assert {e["name"]: e.get("value") for e in environment}.items() >= haproxy.settings(1100).items()
    assert len(told) == 3


@pytest.mark.parametrize("role", ["head", "worker"])
def test_containers_are_not_root_and_cannot_become_it(role: str) -> None:
    pod = pods_of(cluster_of())[role]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("role", ["head", "worker"])
def test_containers_have_the_image_and_haproxys_environment(role: str) -> None:
    (container,) = pods_of(cluster_of())[role]["containers"]
    assert container["image"] == OPTIONS.image
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment.items() >= IMAGE_ENVIRONMENT.items() | haproxy.settings(660).items()
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_worker_takes_gpus_and_the_head_none() -> None:
    pods = pods_of(cluster_of(**EVERYTHING))
    assert pods["worker"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "nvidia.com/gpu" not in pods["head"]["containers"][0]["resources"]["limits"]
    cpu = pods_of(cluster_of(ClusterOptions("i:1", Backend.CPU, ())))["worker"]
    assert "nvidia.com/gpu" not in cpu["containers"][0]["resources"]["limits"]
    assert "tolerations" not in cpu


def test_models_are_kept_in_a_claim_when_one_is_named() -> None:
    claimed = ClusterOptions("i:1", Backend.GPU, (), cache_claim="models")
    for pod in pods_of(cluster_of(claimed)).values():
        assert pod["volumes"][0] == {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
    assert pods_of(cluster_of())["worker"]["volumes"] == [{"name": "cache", "emptyDir": {}}]


def test_tenants_file_is_mounted_from_a_secret_when_one_is_set() -> None:
    for pod in pods_of(cluster_of(**EVERYTHING)).values():
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "tenants"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/expresslane", True)
        (volume,) = [v for v in pod["volumes"] if v["name"] == "tenants"]
        assert volume["secret"]["items"] == [{"key": "tenants.yaml", "path": "tenants.yaml"}]


def test_network_policy_closes_every_port_but_the_applications_to_clients() -> None:
    policy = objects_of()["NetworkPolicy/expresslane"]["spec"]
    own, operator, clients = policy["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"app": "expresslane"}}}]}
    assert [port["port"] for port in clients["ports"]] == [8000]
    assert clients["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}}]
    assert {port["port"] for port in operator["ports"]} == {8265, 8000}
    (peer,) = operator["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


def test_network_policy_lets_no_clients_in_when_none_are_named() -> None:
    policy = objects_of(ClusterOptions("i:1", Backend.GPU, ()))["NetworkPolicy/expresslane"]["spec"]
    assert len(policy["ingress"]) == 2


def test_policies_select_the_pods_of_the_cluster() -> None:
    cluster, objects = cluster_of(), objects_of()
    (workers,) = cluster["workerGroupSpecs"]
    labels = {
        "head": cluster["headGroupSpec"]["template"]["metadata"]["labels"],
        "worker": workers["template"]["metadata"]["labels"],
    }
    for role, own in labels.items():
        wanted = objects[f"PodDisruptionBudget/expresslane-{role}"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= own.items()
        assert [other for other, those in labels.items() if wanted.items() <= those.items()] == [role]
        selector = objects["NetworkPolicy/expresslane"]["spec"]["podSelector"]["matchLabels"]
        assert selector.items() <= own.items()


def test_service_monitor_scrapes_the_service_once_a_period() -> None:
    (endpoint,) = objects_of(**EVERYTHING)["ServiceMonitor/expresslane"]["spec"]["endpoints"]
    assert (endpoint["interval"], endpoint["path"], endpoint["port"]) == ("5s", "/metrics", "serve")
    address, dropped = endpoint["relabelings"]
    assert address["targetLabel"] == "__address__"
    assert address["replacement"] == "expresslane-serve-svc.$1.svc:8000"
    assert "pod" in dropped["regex"].split("|")
    assert endpoint["authorization"]["credentials"]["name"] == "expresslane-operator"
    (without_key,) = objects_of()["ServiceMonitor/expresslane"]["spec"]["endpoints"]
    assert "authorization" not in without_key


def test_rules_are_of_the_settings() -> None:
    groups = objects_of(**EVERYTHING)["PrometheusRule/expresslane"]["spec"]["groups"]
    assert groups[0]["interval"] == "5s"


def test_render_gives_the_objects_back() -> None:
    objects = manifests(config_for(EVERYTHING, 8000), OPTIONS)
    text = render(objects, "# head\n")
    assert list(yaml.safe_load_all(text)) == objects
    assert text.startswith("# head\n---\n")
    assert "&id" not in text


def test_each_model_has_pods_of_its_size() -> None:
    models = [
        {"model": {"source": "org/Small"}, "autoscale": {"max_replicas": 3}},
        {"model": {"source": "org/large"}, "engine": {"tensor_parallel_size": 8}, "swap": {"host_bytes": 2**36}},
    ]
    cluster = cluster_of(models=models)
    small, large = cluster["workerGroupSpecs"]
    assert (small["groupName"], large["groupName"]) == ("workers-org-small", "workers-org-large")
    assert (small["maxReplicas"], large["maxReplicas"]) == (3, 1)
    resources = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in (small, large)]
    assert [of["nvidia.com/gpu"] for of in resources] == ["1", "8"]
    assert resources[0]["memory"] != resources[1]["memory"]
    jsonschema.validate(objects_of(models=models)["RayService/expresslane"], RAY_SERVICE)
    groups = objects_of(models=models)["PrometheusRule/expresslane"]["spec"]["groups"]
    assert [group["name"] for group in groups] == ["expresslane-org-small", "expresslane-org-large"]


def test_models_have_directories_of_their_own_in_the_adapters_volume() -> None:
    directories = ({"adapters_dir": "/mnt/a"}, {"adapters_dir": "/mnt/b"})
    models = [{"model": {"source": f"org/{i}"}, "engine": engine} for i, engine in enumerate(directories)]
    options = replace(OPTIONS, adapters_claim="adapters")
    groups = cluster_of(options, models=models)["workerGroupSpecs"]
    mounts = [group["template"]["spec"]["containers"][0]["volumeMounts"][-1] for group in groups]
    assert [(mount["mountPath"], mount["subPath"]) for mount in mounts] == [("/mnt/a", "org-0"), ("/mnt/b", "org-1")]

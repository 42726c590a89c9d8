"""What the application's parts ask of Serve. Nothing is deployed."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from ray.serve import Application

from app import main
from app.main import BATCHES_DEPLOYMENT, CONTROLLER_DEPLOYMENT, INGRESS_DEPLOYMENT, REPLICA_DEPLOYMENT, build
from slo.settings import parse_settings

HEAD = "node:__internal_head__"


def replica_config(name: str, **settings: Any) -> Any:
    """Serve's `ReplicaConfig` of one of the deployments, as `build` makes it."""
    return deployments(**settings)[name]._replica_config


def deployments(**settings: Any) -> dict[str, Any]:
    """All that `build` makes, by their names."""
    ingress = build(parse_settings(settings))._bound_deployment
    fleets, controller, _, batches = ingress.init_args
    applications = [*fleets.values(), controller, *([] if batches is None else [batches])]
    assert all(isinstance(application, Application) for application in applications)
    bound = [application._bound_deployment for application in applications]
    return {deployment.name: deployment for deployment in (ingress, *bound)}


def test_build_gives_its_deployments() -> None:
    made = {REPLICA_DEPLOYMENT, INGRESS_DEPLOYMENT, CONTROLLER_DEPLOYMENT, BATCHES_DEPLOYMENT}
    assert set(deployments()) == made
    assert set(deployments(batch={"enabled": False})) == made - {BATCHES_DEPLOYMENT}


def test_build_tells_the_controller_whether_there_are_batches() -> None:
    told = [deployments(batch={"enabled": on})[CONTROLLER_DEPLOYMENT].init_args[-1] for on in (True, False)]
    assert told == [BATCHES_DEPLOYMENT, None]


def test_build_gives_each_model_replicas_of_its_own() -> None:
    models = [
        {"model": {"source": "org/Large-70B"}, "engine": {"tensor_parallel_size": 4}},
        {"model": {"source": "org/other", "names": ["small"]}, "replicas": {"num_replicas": 3, "num_gpus": 1}},
    ]
    made = deployments(models=models, engine={"max_num_seqs": 7}, replicas={"accelerator_type": "H100"})
    large, small = made["Replica-org-large-70b"], made["Replica-small"]
    others = {INGRESS_DEPLOYMENT, CONTROLLER_DEPLOYMENT, BATCHES_DEPLOYMENT}
    assert set(made) == {large.name, small.name, *others}
    assert large._replica_config.ray_actor_options["num_gpus"] == 4
    assert small._replica_config.ray_actor_options["num_gpus"] == 1
    assert (large.num_replicas, small.num_replicas) == (1, 3)
    of_large, of_small = large.init_args[0], small.init_args[0]
    assert (of_large.model.source, of_small.model.names) == ("org/Large-70B", ("small",))
    assert of_large.engine.max_num_seqs == of_small.engine.max_num_seqs == 7
    assert list(made[CONTROLLER_DEPLOYMENT].init_args[1]) == ["org/Large-70B", "small"]


def test_build_places_replicas_as_the_engine_needs() -> None:
    one_machine = replica_config(REPLICA_DEPLOYMENT, engine={"tensor_parallel_size": 8}, replicas={"num_gpus": 8})
    assert one_machine.ray_actor_options["num_gpus"] == 8
    assert one_machine.placement_group_bundles is None
    engine = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "multi_node": True}
    several = replica_config(REPLICA_DEPLOYMENT, engine=engine)
    assert several.ray_actor_options["num_gpus"] == 0
    assert len(several.placement_group_bundles) == 16


def test_build_keeps_the_controller_on_the_head_unless_told_otherwise() -> None:
    assert replica_config(CONTROLLER_DEPLOYMENT).ray_actor_options["resources"] == {HEAD: 0.001}
    elsewhere = replica_config(CONTROLLER_DEPLOYMENT, controller={"on_head": False})
    assert not elsewhere.ray_actor_options.get("resources")


def test_build_keeps_the_owner_of_batches_where_its_database_is() -> None:
    assert replica_config(BATCHES_DEPLOYMENT).ray_actor_options["resources"] == {HEAD: 0.001}
    elsewhere = replica_config(BATCHES_DEPLOYMENT, batch={"on_head": False})
    assert not elsewhere.ray_actor_options.get("resources")


def test_build_keeps_neither_replicas_nor_ingress_on_the_head() -> None:
    for name in (REPLICA_DEPLOYMENT, INGRESS_DEPLOYMENT):
        assert HEAD not in replica_config(name).ray_actor_options.get("resources", {})


def test_ingress_knows_the_adapters_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse_settings({"model": {"names": ["base"]}, "engine": {"adapters": {"legal": "/adapters/legal"}}})
    monkeypatch.setattr(main, "create_api", lambda models, *_, **__: models)
    ours = main.Ingress.__bases__[0]  # what Serve wraps
    (model,) = ours({"base": MagicMock()}, MagicMock(), settings).__serve_build_asgi_app__()
    assert model.names.known == ("base", "legal")

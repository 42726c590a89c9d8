"""Binds the application: the ingress in front of the replicas. `import_path: app.main:build` in `serve.yaml`."""

from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.api import create_api
from app.dispatch import ServeDispatcher
from replicas.deployment import Replica
from replicas.engine import is_cpu_build
from slo.logs import configure_logging
from slo.settings import Settings

APPLICATION = "expresslane"
REPLICA_DEPLOYMENT = "Replica"
INGRESS_DEPLOYMENT = "Ingress"


@serve.ingress()
class Ingress:
    """The HTTP side, as a Serve deployment."""

    def __init__(self, replica: DeploymentHandle[Any], settings: Settings) -> None:
        configure_logging()
        self._dispatcher = ServeDispatcher(replica, settings.ingress.ready_timeout_s)
        self._settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve once, in the ingress process."""
        names = self._settings.model.served_names
        return create_api(self._dispatcher, self._settings, names, server_echoes_request_id=True)


def build(args: Settings) -> serve.Application:
    """The application for `args`, which Serve has checked against `Settings`."""
    replicas = args.replicas
    num_gpus = replicas.num_gpus if replicas.num_gpus is not None else (0 if is_cpu_build() else 1)
    replica = serve.deployment(
        Replica,
        name=REPLICA_DEPLOYMENT,
        num_replicas=replicas.num_replicas,
        max_ongoing_requests=replicas.max_ongoing_requests,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": num_gpus},
    ).bind(args)
    ingress = serve.deployment(
        Ingress,
        name=INGRESS_DEPLOYMENT,
        num_replicas=args.ingress.num_replicas,
        max_ongoing_requests=args.ingress.max_ongoing_requests,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        ray_actor_options={"num_cpus": args.ingress.num_cpus},
    )
    return ingress.bind(replica, args)

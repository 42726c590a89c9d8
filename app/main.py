"""Binds the application: the ingress in front of the replicas, and the controller that watches both.

`import_path: app.main:build` in `serve.yaml`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.api import create_api
from app.controller_handle import ServeOperator
from app.dispatch import ServeDispatcher
from app.gate.access import open_access
from app.gate.entry import Entry
from app.gate.fleet import num_running
from app.metrics import IngressMetrics
from autoscale.deployment import Controller
from replicas.deployment import Replica
from replicas.engine import is_cpu_build
from slo.logs import configure_logging
from slo.settings import Settings
from slo.snapshots import IngressSnapshot

APPLICATION = "expresslane"
REPLICA_DEPLOYMENT = "Replica"
INGRESS_DEPLOYMENT = "Ingress"
CONTROLLER_DEPLOYMENT = "Controller"
CONTROLLER_SHUTDOWN_S = 5.0
"""For answers in flight; the control loop needs none: it keeps its state before it acts."""


@serve.ingress()
class Ingress:
    """The HTTP side, as a Serve deployment."""

    def __init__(self, replica: DeploymentHandle[Any], controller: DeploymentHandle[Any], settings: Settings) -> None:
        configure_logging()
        self._dispatcher = ServeDispatcher(replica, settings.ingress.ready_timeout_s)
        self._operator = ServeOperator(controller, settings.ingress.ready_timeout_s)
        self._metrics = IngressMetrics(settings.scheduler.targets)
        self._entry = Entry(settings, open_access(settings.tenants))
        self._settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve once, in the ingress process."""
        names = self._settings.model.served_names
        return create_api(
            self._dispatcher,
            self._settings,
            names,
            metrics=self._metrics,
            operator=self._operator,
            entry=self._entry,
            lifespan=self._while_serving,
            server_echoes_request_id=True,
        )

    @asynccontextmanager
    async def _while_serving(self, _: FastAPI) -> AsyncIterator[None]:
        count = partial(num_running, self._operator, self._dispatcher)
        async with self._entry.following(count, self._settings.admission.replicas_period_s):
            yield

    async def snapshot(self) -> IngressSnapshot:
        """What this process has counted. Called by the controller over a handle."""
        return self._metrics.snapshot({c: at_gate.num_queued for c, at_gate in self._entry.gate.state().items()})


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
    controller = serve.deployment(
        Controller,
        name=CONTROLLER_DEPLOYMENT,
        num_replicas=1,
        graceful_shutdown_timeout_s=CONTROLLER_SHUTDOWN_S,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        ray_actor_options={"num_cpus": args.controller.num_cpus},
    ).bind(args, replica, INGRESS_DEPLOYMENT)
    ingress = serve.deployment(
        Ingress,
        name=INGRESS_DEPLOYMENT,
        num_replicas=args.ingress.num_replicas,
        max_ongoing_requests=args.ingress.max_ongoing_requests,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        ray_actor_options={"num_cpus": args.ingress.num_cpus},
    )
    return ingress.bind(replica, controller, args)

"""Binds the application: the ingress in front of the replicas, and the controller that watches both.

`import_path: app.main:build` in `serve.yaml`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray.serve.handle import DeploymentHandle

from app.api import create_api
from app.batch_handle import ServeBatches
from app.controller_handle import ServeOperator
from app.dispatch import ServeDispatcher
from app.gate.access import Access, open_access
from app.gate.entry import Entry
from app.gate.fleet import num_running
from app.gate.quota import Quotas
from app.lines import Lines
from app.metrics import IngressMetrics
from app.request_head import SERVE_ENVIRONMENT
from app.routing_config import request_router_config
from app.served import ServedModel, ServedModels, serve_model
from app.survive import SurvivingDispatcher
from autoscale.deployment import Controller
from batch.deployment import Batches
from replicas.deployment import Replica
from replicas.engine import is_cpu_build
from replicas.placement import plan_placement
from slo.batch import LineAnswer, LineCall
from slo.logs import configure_logging
from slo.settings import Settings
from slo.settings.models import slug
from slo.snapshots import IngressSnapshot

APPLICATION = "expresslane"
REPLICA_DEPLOYMENT = "Replica"
INGRESS_DEPLOYMENT = "Ingress"
CONTROLLER_DEPLOYMENT = "Controller"
BATCHES_DEPLOYMENT = "Batches"
CONTROLLER_SHUTDOWN_S = BATCHES_SHUTDOWN_S = 5.0
"""For answers in flight; more is not needed: both keep what must not be lost before they act."""
HEAD_SHARE = 0.001
"""Of the head's own resource; as little as Ray Serve's controller takes."""


@serve.ingress()
class Ingress:
    """The HTTP side, as a Serve deployment.

    Args:
        replicas: the handles of the replica deployments, by their models' first names.
    """

    def __init__(
        self,
        replicas: dict[str, DeploymentHandle[Any]],
        controller: DeploymentHandle[Any],
        settings: Settings,
        batches: DeploymentHandle[Any] | None = None,
    ) -> None:
        configure_logging()
        self._settings = settings
        self._operator = ServeOperator(controller, settings.ingress.ready_timeout_s)
        access, quotas = open_access(settings.tenants), Quotas(settings.ingress.num_replicas)
        of_models = settings.by_model
        self._models = {m: _serve(handle, of_models[m], access, quotas) for m, handle in replicas.items()}
        self._batches = None if batches is None else ServeBatches(batches)
        self._lines = Lines(ServedModels(list(self._models.values())))

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve once, in the ingress process."""
        return create_api(
            list(self._models.values()),
            self._settings,
            operator=self._operator,
            batches=self._batches,
            lifespan=self._while_serving,
            server_echoes_request_id=True,
        )

    @asynccontextmanager
    async def _while_serving(self, _: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as followed:
            for name, model in self._models.items():
                count = partial(num_running, self._operator, name, model.dispatcher)
                period_s = self._settings.admission.replicas_period_s
                await followed.enter_async_context(model.entry.following(count, period_s))
            yield

    async def snapshot(self, model: str) -> IngressSnapshot:
        """What this process has counted of a model's requests. Called by the controller over a handle."""
        served = self._models[model]
        return served.metrics.snapshot({c: at_gate.num_queued for c, at_gate in served.entry.gate.state().items()})

    async def answer_line(self, call: LineCall) -> LineAnswer:
        """One line of a batch, as a request of its tenant. Called by the owner of the batches over a handle."""
        return await self._lines.answer(call)


def build(args: Settings) -> serve.Application:
    """The application for `args`, which Serve has checked against `Settings`."""
    of_models, replicas = args.by_model, args.replicas
    is_only = len(of_models) == 1
    fleets = {
        model: _replicas(REPLICA_DEPLOYMENT if is_only else f"{REPLICA_DEPLOYMENT}-{slug(model)}", settings)
        for model, settings in of_models.items()
    }
    controller = serve.deployment(
        Controller,
        name=CONTROLLER_DEPLOYMENT,
        num_replicas=1,
        graceful_shutdown_timeout_s=CONTROLLER_SHUTDOWN_S,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        ray_actor_options=_small(args.controller.num_cpus, args.controller.on_head),
    ).bind(args, fleets, INGRESS_DEPLOYMENT, BATCHES_DEPLOYMENT if args.batch.enabled else None)
    batches = serve.deployment(
        Batches,
        name=BATCHES_DEPLOYMENT,
        num_replicas=1,
        max_ongoing_requests=args.ingress.max_ongoing_requests,
        graceful_shutdown_timeout_s=BATCHES_SHUTDOWN_S,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        ray_actor_options=_small(args.batch.num_cpus, args.batch.on_head),
    ).bind(args, INGRESS_DEPLOYMENT)
    ingress = serve.deployment(
        Ingress,
        name=INGRESS_DEPLOYMENT,
        num_replicas=args.ingress.num_replicas,
        max_ongoing_requests=args.ingress.max_ongoing_requests,
        max_surge_percent=100,  # the next process answers before this one stops: with one alone, nobody would
        graceful_shutdown_timeout_s=args.longest_answer_s,
        ray_actor_options={"num_cpus": args.ingress.num_cpus, "runtime_env": {"env_vars": dict(SERVE_ENVIRONMENT)}},
    )
    return ingress.bind(fleets, controller, args, batches if args.batch.enabled else None)


def _replicas(name: str, settings: Settings) -> serve.Application:
    """The replica deployment of one model, which `settings` are of alone."""
    replicas = settings.replicas
    return serve.deployment(
        Replica,
        name=name,
        num_replicas=replicas.num_replicas,
        max_ongoing_requests=replicas.max_ongoing_requests,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=1.0,
        max_surge_percent=replicas.max_surge_percent,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        request_router_config=request_router_config(settings),
        **plan_placement(settings.engine, replicas, is_cpu_build()).as_options(),
    ).bind(settings)


def _serve(replicas: DeploymentHandle[Any], settings: Settings, access: Access, quotas: Quotas) -> ServedModel:
    """One model as the ingress serves it."""
    metrics = IngressMetrics(settings.scheduler.targets)
    over_handle = ServeDispatcher(replicas, settings.ingress.ready_timeout_s, settings.admission)
    surviving = SurvivingDispatcher(over_handle, settings.faults, metrics)
    return serve_model(surviving, settings, metrics, Entry(settings, access, quotas))


def _small(num_cpus: float, on_head: bool) -> dict[str, Any]:
    """What a process beside the engines asks of a machine: CPUs, and the resource that a cluster's head alone has."""
    return {"num_cpus": num_cpus, "resources": {HEAD_NODE_RESOURCE_NAME: HEAD_SHARE} if on_head else {}}

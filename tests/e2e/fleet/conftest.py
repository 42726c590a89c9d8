"""A fleet of two replicas behind one ingress, on a cluster of a head and two worker nodes, shared by the tests here.

The head has no room for engines; the ingress runs there, where it was placed before the workers joined. A replica takes
16 requests and runs 4 of them. The gate admits what comes and lets it wait long: no machine's speed decides anything.
Every test finds the fleet whole and with these settings, whatever the one before it has done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cli.cluster import free_port
from cli.config import config_for, settings_of
from slo.status import StatusReport
from tests.e2e.conftest import LIMIT_S, MODEL, SLOTS, Application, alive, deploy, tiny_engine, wait_until
from tests.e2e.fleet.nodes import Cluster, deployed, running_cluster
from tests.e2e.test_faults import ENGINE, INGRESS, PATIENT, REPLICA, named
from tests.tiny_model import make_tiny_model

NUM_REPLICAS = 2
MAX_ONGOING = 4 * SLOTS
CPUS_OF_REPLICA = 2


def arguments(model: Path) -> dict[str, Any]:
    return {
        **tiny_engine(model),
        "replicas": {"num_replicas": NUM_REPLICAS, "max_ongoing_requests": MAX_ONGOING, "num_cpus": CPUS_OF_REPLICA},
        "routing": {"slow_step_s": 60},
        "admission": {c: PATIENT | {"max_in_flight": 1000} for c in ("p0", "p1", "p2")} | {"max_wait_ratio": 1},
        "faults": {"replacement_timeout_s": LIMIT_S},
        "autoscale": {"period_s": 0.5, "window_s": 1.5, "stale_after_s": 5},
    }


@dataclass
class Fleet:
    """The application, and where it runs.

    Attributes:
        config: as it was deployed at first; what is deployed now is `current`.
    """

    application: Application
    cluster: Cluster
    config: dict[str, Any]
    current: dict[str, Any]

    def named(self, name: str) -> list[psutil.Process]:
        """The processes of a deployment, or the engines, on all nodes."""
        return list(chain.from_iterable(named(node, name) for node in self.cluster.nodes))

    def counted(self, name: str) -> list[int]:
        """How many of them each node has, the head first."""
        return [len(named(node, name)) for node in self.cluster.nodes]

    def deploy(self, config: dict[str, Any]) -> None:
        deploy(self.application.dashboard_url, config)
        self.current = config

    def is_whole(self) -> bool:
        """Whether all replicas answer, and no process is left of those that they have replaced."""
        if [len(self.named(name)) for name in (INGRESS, REPLICA, ENGINE)] != [1, NUM_REPLICAS, NUM_REPLICAS]:
            return False
        answer = self.status()
        return answer.status_code == 200 and is_whole(StatusReport.model_validate_json(answer.content))

    def wait_until_whole(self) -> None:
        """Waits for it; what is there instead is told by the error."""
        try:
            wait_until(self.is_whole, "whole")
        except AssertionError as error:
            processes = {name: [p.pid for p in self.named(name)] for name in (INGRESS, REPLICA, ENGINE)}
            error.add_note(f"{processes}\n{self.status().text}")
            raise

    def status(self) -> httpx.Response:
        """What `/v1/status` answers."""
        return httpx.get(f"{self.application.url}/v1/status", timeout=LIMIT_S)


def is_whole(status: StatusReport) -> bool:
    """Whether all replicas are there, and have told their numbers."""
    return status.is_complete and (status.counts.running, len(status.replicas)) == (NUM_REPLICAS, NUM_REPLICAS)


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    config = config_for(arguments(make_tiny_model(directory / MODEL)), free_port())
    longest_answer_s = settings_of(config).replicas.graceful_shutdown_timeout_s
    with (
        tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as ray_dir,
        running_cluster(Path(ray_dir), longest_answer_s) as cluster,
    ):
        cluster.start_head(num_cpus=CPUS_OF_REPLICA - 1)
        application = deployed(cluster, config)
        first = cluster.add_worker(num_cpus=CPUS_OF_REPLICA)  # Ray fills a node that joins: room for one replica alone
        wait_until(lambda: len(named(first, REPLICA)) == 1, "a replica on the first worker")
        cluster.add_worker(num_cpus=NUM_REPLICAS * CPUS_OF_REPLICA + 1)
        yield Fleet(application, cluster, config, config)


@pytest.fixture(scope="module")
def fleet(started: Fleet) -> Fleet:
    """As it was at first, but that all replicas may be on one node."""
    if started.current is not started.config:
        replaced = started.named(REPLICA)
        started.deploy(started.config)
        wait_until(lambda: not alive(replaced), "the replicas with other settings have ended")
    started.wait_until_whole()
    return started

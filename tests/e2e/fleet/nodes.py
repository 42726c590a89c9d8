"""A Ray cluster of several nodes on this one machine, each started by `ray start` as on a machine of its own.

The nodes have the environment that the product's cluster files give them. HAProxy runs on each, with ports of its own:
on one machine they would clash (`RAY_SERVE_WORKER_PROXY_HTTP_PORT`, and each node's statistics and metrics ports).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from cli.cluster import answers, cluster_environment, free_port
from cli.config import port_of
from tests.e2e.conftest import Application, deploy, wait_until

RAY = Path(sys.executable).with_name("ray")
END_S = 30


@dataclass(frozen=True)
class Node:
    """One node; everything of it is a child of its `ray start`."""

    started: subprocess.Popen[bytes]

    @property
    def process(self) -> psutil.Process:
        """Only while it runs."""
        return psutil.Process(self.started.pid)

    def has_ended(self) -> bool:
        """By itself, or because it was powered off."""
        return self.started.poll() is not None

    def power_off(self) -> None:
        """Everything on it ends at once, nothing of it in an orderly way: first it stands still, then it is gone."""
        processes = [self.process, *self.process.children(recursive=True)]
        for send in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    send(process)
        self.started.wait(timeout=END_S)
        psutil.wait_procs(processes, timeout=END_S)


@dataclass
class Cluster:
    """A head, and the workers that join it."""

    directory: Path
    """Short: sockets are in it."""
    longest_answer_s: float
    gcs_port: int = field(default_factory=free_port)
    dashboard_port: int = field(default_factory=free_port)
    nodes: list[Node] = field(default_factory=list)
    """Those that run, the head first."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def dashboard_url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start_head(self, num_cpus: int) -> Node:
        ports = [f"--port={self.gcs_port}", f"--dashboard-port={self.dashboard_port}", "--dashboard-host=127.0.0.1"]
        more = ["--include-dashboard=true", f"--ray-client-server-port={free_port()}", f"--temp-dir={self.directory}"]
        return self._start(num_cpus, "--head", *ports, *more)

    def add_worker(self, num_cpus: int) -> Node:
        return self._start(num_cpus, f"--address=127.0.0.1:{self.gcs_port}")

    def power_off(self, node: Node) -> None:
        """The node is lost."""
        self.nodes.remove(node)
        node.power_off()

    def _start(self, num_cpus: int, *options: str) -> Node:
        name = f"node-{next(self._numbers)}"
        proxy_dir = self.directory / name
        proxy_dir.mkdir()
        environment = {
            **os.environ,
            **cluster_environment(proxy_dir, self.longest_answer_s),
            "RAY_AUTH_MODE": "token",
            "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(free_port()),
        }
        resources = [f"--num-cpus={num_cpus}", "--num-gpus=0", "--object-store-memory=100000000"]
        ports = ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
        command = [RAY, "start", "--block", *resources, *ports, *options]
        with (self.directory / f"{name}.output").open("w") as output:
            self.nodes.append(Node(subprocess.Popen(command, stdout=output, stderr=output, env=environment)))
        return self.nodes[-1]

    def end(self) -> None:
        for node in reversed(self.nodes):
            if not node.has_ended():
                node.power_off()


@contextlib.contextmanager
def running_cluster(directory: Path, longest_answer_s: float) -> Iterator[Cluster]:
    """A cluster without a node; ended with all that it started. Makes Ray's token where there is none."""
    subprocess.run([RAY, "get-auth-token", "--generate"], stdout=subprocess.DEVNULL, check=True)
    cluster = Cluster(directory, longest_answer_s)
    try:
        yield cluster
    finally:
        cluster.end()


def deployed(cluster: Cluster, config: dict[str, Any]) -> Application:
    """The application on a cluster whose head runs, when its ingress answers: replicas may still be missing."""
    url = f"http://127.0.0.1:{port_of(config)}"
    wait_until(lambda: _listens(cluster.dashboard_port) or cluster.nodes[0].has_ended(), "the head's dashboard")
    assert not cluster.nodes[0].has_ended(), (cluster.directory / "node-0.output").read_text()
    deploy(cluster.dashboard_url, config)
    wait_until(lambda: answers(f"{url}/healthz"), "the ingress")
    logs = cluster.directory / "session_latest" / "logs"
    return Application(url, cluster.dashboard_url, logs, cluster.nodes[0].process)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

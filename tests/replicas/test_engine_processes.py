"""The engine's processes and their guard, with real processes that stand for an engine core and its worker."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psutil
import pytest

from replicas import engine_guard
from replicas.engine_processes import EngineProcesses, child_processes

GENEROUS_S = 60.0
WORKER = "import time; time.sleep(1000)"
CORE = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}])
print(worker.pid, flush=True)
worker.wait()
"""
REPLICA = f"""
import subprocess, sys, time
from replicas.engine_processes import EngineProcesses, child_processes
before = child_processes()
core = subprocess.Popen([sys.executable, "-c", {CORE!r}], stdout=subprocess.PIPE)
worker = int(core.stdout.readline())
engine = EngineProcesses.started_since(before)
engine.guard()
print(core.pid, worker, engine._guard.pid, flush=True)
time.sleep(1000)
"""


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def core() -> Iterator[psutil.Process]:
    """An engine core with a worker."""
    with subprocess.Popen([sys.executable, "-c", CORE], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        process = psutil.Process(started.pid)
        left = [process, *process.children(recursive=True)]
        yield process
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def test_those_started_since_are_found_with_their_children(core: psutil.Process) -> None:
    before = child_processes() - {core, *core.children(recursive=True)}
    assert set(EngineProcesses.started_since(before).pids) == {core.pid, *(p.pid for p in core.children())}
    assert EngineProcesses.started_since(child_processes()).pids == ()


def test_resource_tracker_is_left_to_tidy_up() -> None:
    code = "import time; time.sleep(1000)  # from multiprocessing.resource_tracker import main"
    with subprocess.Popen([sys.executable, "-c", code]) as tracker:
        try:
            wait_until(lambda: "-c" in psutil.Process(tracker.pid).cmdline())
            assert EngineProcesses([psutil.Process(tracker.pid)]).pids == ()
        finally:
            tracker.kill()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_kill_ends_all_of_them(core: psutil.Process, is_frozen: bool) -> None:
    all_of_them = [core, *core.children()]
    engine = EngineProcesses(all_of_them)
    if is_frozen:
        for process in all_of_them:
            process.send_signal(signal.SIGSTOP)
    engine.kill()
    wait_until(lambda: all(map(is_gone, all_of_them)))
    engine.kill()  # Once more is no error.


def test_worker_is_killed_when_its_engine_core_died_first(core: psutil.Process) -> None:
    (worker,) = core.children()
    engine = EngineProcesses([core, worker])
    core.kill()
    wait_until(lambda: is_gone(core))
    assert not is_gone(worker)
    engine.kill()
    wait_until(lambda: is_gone(worker))


def test_release_ends_the_guard_and_what_is_left(core: psutil.Process) -> None:
    (worker,) = core.children()
    engine = EngineProcesses([core, worker])
    before = child_processes()
    engine.guard()
    (guard,) = child_processes() - before
    assert not is_gone(core)
    engine.release()
    engine.release()
    wait_until(lambda: all(map(is_gone, (guard, core, worker))))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_guard_ends_the_engine_when_the_replica_is_killed(is_frozen: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", REPLICA], stdout=subprocess.PIPE) as replica:
        assert replica.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in replica.stdout.readline().split()]
        try:
            *engine, guard = processes
            if is_frozen:
                for process in engine:
                    process.send_signal(signal.SIGSTOP)
            wait_until(lambda: "engine_guard.py" in " ".join(guard.cmdline()))
            assert not any(map(is_gone, processes))
            replica.kill()
            wait_until(lambda: all(map(is_gone, processes)))
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            replica.kill()


def test_guard_does_nothing_before_its_input_ends(core: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = core.children()
    seen: list[bool] = []

    def read() -> bytes:
        seen.append(is_gone(core) or is_gone(worker))
        return b""

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=read)))
    engine_guard.watch([core.pid])
    assert seen == [False]
    wait_until(lambda: is_gone(core) and is_gone(worker))

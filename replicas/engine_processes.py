"""The processes of this replica's engine: which they are, and their end when the engine cannot see to it.

Owns no decision. vLLM ends its processes itself as long as it works; here is the rest: one that is frozen, one whose
parent died before it, and all of them when the replica itself is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

GUARD = Path(__file__).with_name("engine_guard.py")
_TRACKER = "multiprocessing.resource_tracker"
"""Python's own child: it removes what the others leave in shared memory, and ends by itself."""


def child_processes() -> frozenset[psutil.Process]:
    """This process's children, and theirs."""
    return frozenset(psutil.Process().children(recursive=True))


class EngineProcesses:
    """The processes of one engine. Used in the replica's process.

    They are found once, when the engine has started: a worker whose engine core has died is no child of ours any more.
    """

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._processes = tuple(p for p in processes if not _is_tracker(p))
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def started_since(cls, before: Collection[psutil.Process]) -> EngineProcesses:
        """Those that were started after `before` was taken by `child_processes`."""
        return cls(p for p in child_processes() if p not in before)

    @property
    def pids(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(p.pid for p in self._processes)

    def guard(self) -> None:
        """From now on they end when this process does, however it does. See `engine_guard`."""
        # -P: this directory's `statistics` and `openai` are not the modules that others mean. A session of its own:
        # Ctrl-C in a terminal is for the application.
        command = [sys.executable, "-P", str(GUARD), *map(str, self.pids)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def kill(self) -> None:
        """Kills them all, also frozen ones. Safe to repeat."""
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def release(self) -> None:
        """The engine was shut down: ends the guard, which kills what is left. Safe to repeat."""
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(_TRACKER in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False

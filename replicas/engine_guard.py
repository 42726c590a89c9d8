"""Ends the processes of an engine whose replica is gone, however it went. A small program of its own.

    python -P engine_guard.py PID...

vLLM's engine core does not notice that its parent died: it would hold its GPU's memory for ever, and the replica that
comes in its place could not start. The guard's standard input is a pipe from the replica that nobody writes to, so it
ends with the replica; what is left of the engine then, frozen or not, is killed.

Imports nothing of ours: it is run by its path, and starts in some 50 ms.
"""

import contextlib
import sys
from collections.abc import Iterator

import psutil


def watch(pids: list[int]) -> None:
    """Waits for the end of standard input, then kills what is left of `pids`, and what they have started."""
    # Found before the wait: a process is known by its start too, so that no stranger with its number is killed later.
    processes = list(_found(pids))
    sys.stdin.buffer.read()
    for process in {each for p in processes for each in (p, *_children(p))}:
        _kill(process)


def _found(pids: list[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children: list[psutil.Process] = process.children(recursive=True)
        return children
    return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() == psutil.STATUS_ZOMBIE:
            return
        process.kill()
        print(f"WARNING expresslane.engine_guard pid={process.pid} reason=replica_gone", file=sys.stderr)


if __name__ == "__main__":
    watch([int(pid) for pid in sys.argv[1:]])

"""Runs one command and answers for its end: all that it started ends with it, and with whoever started this.

    python -m bench.compare.keeper DIRECTORY GRACE_S COMMAND...

A process of its own, in a session of its own, whose standard input is a pipe that its starter holds open. The end of
the pipe, however it comes (the starter asks, breaks off, or is killed), and the command's own end are the same: SIGINT
for the command, so that it can take down what it has started; after `GRACE_S` seconds, or when it is gone, whatever is
left of its descendants is terminated, then killed, and `DIRECTORY` is removed. On Linux a descendant cannot escape by
losing its parent: it becomes this process's child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

POLL_S = 0.5
ENDING_POLL_S = 0.1
TERMINATE_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: Sequence[str]) -> int:
    """The command's exit status as a shell tells it: 127 when it cannot be started, 128 and a signal that ended it."""
    directory, grace_s, *command = arguments
    _adopt_orphans()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)  # the pipe alone says when; a handler is not inherited, ignoring is
    try:
        return keep(command, float(grace_s))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def keep(command: Sequence[str], grace_s: float) -> int:
    """Runs `command` until it ends, or standard input does; then ends all of it."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while not _has_ended(process) and not _input_ended():
        pass
    if not _has_ended(process):
        process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + grace_s
        while not _has_ended(process) and time.monotonic() < deadline_s:
            time.sleep(ENDING_POLL_S)
    end_descendants()
    status = -signal.SIGKILL if process.returncode is None else process.returncode
    return status if status >= 0 else 128 - status


def end_descendants() -> None:
    """Terminates all descendants, and kills those that stay."""
    for end in (psutil.Process.terminate, psutil.Process.kill, psutil.Process.kill):
        descendants = psutil.Process().children(recursive=True)
        for each in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(each)
        psutil.wait_procs(descendants, timeout=TERMINATE_S)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command has. Reaps adopted orphans by the way: the command may be waiting for them to be gone."""
    with contextlib.suppress(ChildProcessError):
        while process.returncode is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == process.pid:
                process.returncode = os.waitstatus_to_exitcode(ended[1])
    return process.returncode is not None


def _input_ended() -> bool:
    """Waits for `POLL_S` at most."""
    ready, _, _ = select.select([0], [], [], POLL_S)
    return bool(ready) and not os.read(0, 1024)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

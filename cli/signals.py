"""What ends a long command in an orderly way."""

from __future__ import annotations

import signal
from types import FrameType


def stop_on_signals() -> None:
    """SIGINT and SIGTERM become KeyboardInterrupt. SIGINT too: a shell starts background jobs with it ignored."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _as_interrupt)


def _as_interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001, a handler is given both
    raise KeyboardInterrupt

"""How much host memory can still be used here: the machine's, and what the cgroup limits around this process leave.

Reads the kernel's files and decides nothing. A container's limit is on the path of its control group, of version 2 or
1, or at the top, where the container sees only its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

PROC_CGROUP: Final = Path("/proc/self/cgroup")
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")


def available_host_bytes(proc_cgroup: Path = PROC_CGROUP, cgroup_root: Path = CGROUP_ROOT) -> int:
    """Bytes that this process and its children can still take: the least that the machine and each limit leave."""
    of_machine = int(psutil.virtual_memory().available)
    return max(0, min([of_machine, *_left_by_limits(proc_cgroup, cgroup_root)]))


def _left_by_limits(proc_cgroup: Path, cgroup_root: Path) -> Iterator[int]:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left_on_path(cgroup_root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_on_path(cgroup_root / "memory", path, *names)


def _left_on_path(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """What the limit of the group and of each group around it leaves. Groups that are not mounted here are skipped."""
    group = root / path.lstrip("/")
    for at in (group, *(parent for parent in group.parents if parent.is_relative_to(root))):
        limit_bytes, usage_bytes = _number(at / limit), _number(at / usage)
        if limit_bytes is not None and usage_bytes is not None:
            yield limit_bytes - usage_bytes + _counter(at / "memory.stat", reclaimable)


def _number(file: Path) -> int | None:
    """None for `max`, which is no limit, and where there is no such file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _counter(file: Path, name: str) -> int:
    """Page cache that the kernel gives up first; 0 if it does not say."""
    try:
        counters = dict(line.split() for line in file.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get(name, 0))

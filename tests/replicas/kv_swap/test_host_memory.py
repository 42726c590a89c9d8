"""What the kernel's files say, of both versions of control groups.

Mutations tried, each failing here: the group's own limit not read; limits around it not read; page cache counted as
used; `max` read as a number; the machine's memory left out.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from replicas.kv_swap.host_memory import available_host_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=100 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def group(root: Path, limit: str, used: int, page_cache: int = 0) -> None:
    """A group of version 2."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "memory.max").write_text(f"{limit}\n")
    (root / "memory.current").write_text(f"{used}\n")
    (root / "memory.stat").write_text(f"anon 1\ninactive_file {page_cache}\n")


def group_v1(root: Path, limit: int, used: int, page_cache: int = 0) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (root / "memory.usage_in_bytes").write_text(f"{used}\n")
    (root / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {page_cache}\n")


def available(tmp_path: Path, proc_cgroup: str) -> int:
    (tmp_path / "cgroup").write_text(proc_cgroup)
    return available_host_bytes(tmp_path / "cgroup", tmp_path / "sys")


def test_machine_without_limits_has_what_it_has(tmp_path: Path) -> None:
    assert available_host_bytes(tmp_path / "none", tmp_path) == 100 * GIB
    assert available(tmp_path, "0::/\n") == 100 * GIB
    group(tmp_path / "sys", "max", 5 * GIB)
    assert available(tmp_path, "0::/\n") == 100 * GIB


def test_limit_leaves_what_is_not_used_and_page_cache(tmp_path: Path) -> None:
    group(tmp_path / "sys" / "pod" / "container", str(16 * GIB), 10 * GIB, 3 * GIB)
    assert available(tmp_path, "0::/pod/container\n") == 9 * GIB


def test_limit_of_a_group_around_holds_too(tmp_path: Path) -> None:
    group(tmp_path / "sys" / "pod" / "container", "max", GIB)
    group(tmp_path / "sys" / "pod", str(8 * GIB), 2 * GIB)
    assert available(tmp_path, "0::/pod/container\n") == 6 * GIB


def test_limit_is_found_at_the_top_where_a_container_sees_only_its_own_group(tmp_path: Path) -> None:
    group_v1(tmp_path / "sys" / "memory", 4 * GIB, GIB, GIB // 2)
    assert available(tmp_path, "4:cpu,memory:/docker/0123\n0::/\n") == 3.5 * GIB


def test_limit_of_version_1_is_found_on_the_path(tmp_path: Path) -> None:
    group_v1(tmp_path / "sys" / "memory", 2**63 - 4096, 90 * GIB)
    group_v1(tmp_path / "sys" / "memory" / "job", 4 * GIB, 3 * GIB)
    assert available(tmp_path, "12:memory:/job\n3:cpu:/elsewhere\n") == GIB


def test_limit_already_passed_leaves_nothing(tmp_path: Path) -> None:
    group(tmp_path / "sys", str(GIB), 2 * GIB)
    assert available(tmp_path, "0::/\n") == 0


def test_this_machine_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < available_host_bytes() <= psutil.virtual_memory().total

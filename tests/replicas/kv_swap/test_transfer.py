"""Copies between device and host memory. The CPU's for real; of CUDA's, which needs a device, what is asked of it.

Mutations tried, each failing here: the copy launched before the stream waits for the compute stream; no wait for the
end; no wait after a launch that failed; the two directions' streams or parameters mixed up; the compute stream made to
wait; ids not checked; memory page-locked piece by piece.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from replicas.kv_swap import transfer as transfer_module
from replicas.kv_swap.moves import Direction
from replicas.kv_swap.regions import Region
from replicas.kv_swap.transfer import CpuTransfer, CudaTransfer, host_rows

REGIONS = (Region(0, 8, 6), Region(48, 4, 6))
"""Six blocks of 12 bytes."""


def rows_of_device() -> tuple[torch.Tensor, ...]:
    raw = torch.arange(72, dtype=torch.uint8)
    return tuple(raw[r.start : r.end].view(r.num_blocks, r.block_bytes) for r in REGIONS)


def test_host_rows_are_one_allocation_with_a_row_a_slot() -> None:
    rows = host_rows(REGIONS, 4)
    assert [tuple(part.shape) for part in rows] == [(4, 8), (4, 4)]
    assert rows[1].data_ptr() == rows[0].data_ptr() + 32
    assert rows[0].untyped_storage().nbytes() == 48


def test_host_rows_take_memory_when_they_are_touched() -> None:
    def resident_bytes() -> int:
        return int(psutil.Process().memory_info().rss)

    before = resident_bytes()
    rows = host_rows((Region(0, 2**20, 1),), 1024)
    assert resident_bytes() - before < 2**28
    rows[0][:512] = 1
    assert resident_bytes() - before > 2**28


@pytest.mark.parametrize("direction", Direction)
def test_cpu_copies_pair_by_pair(direction: Direction) -> None:
    device, host = rows_of_device(), host_rows(REGIONS, 4)
    for part in host:
        part.fill_(255)
    transfer = CpuTransfer(device, host)
    before = [part.clone() for part in device]
    seconds = transfer.copy(direction, [5, 0], [1, 3], transfer.mark())
    assert seconds > 0
    for part, was, of_host in zip(device, before, host, strict=True):
        expected = was[[5, 0]] if direction is Direction.OUT else torch.full_like(was[[5, 0]], 255)
        assert torch.equal(of_host[[1, 3]], expected)
        assert torch.equal(part[[5, 0]], expected)
        assert torch.equal(part[1:5], was[1:5])
        assert bool((of_host[[0, 2]] == 255).all())


@pytest.mark.parametrize("busy_share", [0.25, transfer_module.BUSY_SHARE, 1.0])
def test_cpu_rests_in_proportion_to_its_work(monkeypatch: pytest.MonkeyPatch, busy_share: float) -> None:
    monkeypatch.setattr(transfer_module, "BUSY_SHARE", busy_share)
    now_s, rested = [0.0], []

    def sleep(seconds: float) -> None:
        rested.append(seconds)
        now_s[0] += seconds

    monkeypatch.setattr(transfer_module.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(transfer_module.time, "sleep", sleep)
    pacing = transfer_module._Pacing()
    worked_s = 0.0
    for _ in range(1000):
        now_s[0] += 1e-4
        worked_s += 1e-4
        pacing.rest()
    share = worked_s / (worked_s + sum(rested))
    assert share == pytest.approx(busy_share, rel=0.02)
    assert all(seconds >= transfer_module.REST_S for seconds in rested)


class FakeCuda:
    """Writes down what is asked of CUDA, in order, by whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.fails = False
        log, outer = self.log, self

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self.blocking = blocking
                self.has_time = enable_timing

            def record(self, stream: Any) -> None:
                log.append(("record", self, stream))

            def synchronize(self) -> None:
                assert self.blocking
                log.append(("synchronize", self))

            def elapsed_time(self, end: Event) -> float:
                assert self.has_time
                assert end.has_time
                return 4.0

        class Stream:
            def __init__(self, device: Any, priority: int) -> None:
                self.device, self.priority = device, priority

            @staticmethod
            def priority_range() -> tuple[int, int]:
                return 0, -5

            def wait_event(self, event: Event) -> None:
                log.append(("wait", self, event))

        class Memory(ModuleType):
            CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1
            CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3

            @staticmethod
            def pin_tensor(tensor: torch.Tensor) -> None:
                log.append(("pin", tensor.data_ptr(), tensor.nbytes))
                if outer.fails:
                    raise RuntimeError("cudaHostRegister failed: 2")

            @staticmethod
            def build_params(source: Any, target: Any, stream: Any, order: int) -> tuple[Any, ...]:
                return source, target, stream, order

            @staticmethod
            def copy_blocks(source: list[int], target: list[int], params: tuple[Any, ...]) -> None:
                log.append(("copy", source, target, params))
                if outer.fails:
                    raise RuntimeError("batch memcpy failed")

        self.compute = Stream("cuda:0", 0)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.compute)
        utils = ModuleType("vllm.utils.torch_utils")
        utils.PIN_MEMORY = True  # type: ignore[attr-defined]
        memory = Memory("vllm.v1.simple_kv_offload.cuda_mem_ops")
        package = ModuleType("vllm.v1.simple_kv_offload")
        package.cuda_mem_ops = memory  # type: ignore[attr-defined]
        for module in (utils, memory, package):
            monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def make_cuda_transfer() -> CudaTransfer:
    return CudaTransfer(rows_of_device(), host_rows(REGIONS, 4))


def test_cuda_page_locks_all_host_memory_at_once(cuda: FakeCuda) -> None:
    transfer = make_cuda_transfer()
    assert cuda.log == [("pin", transfer.host_rows[0].data_ptr(), 48)]


def test_cuda_that_cannot_page_lock_names_the_setting(cuda: FakeCuda) -> None:
    cuda.fails = True
    with pytest.raises(RuntimeError, match=r"48 bytes of host memory: lower swap\.host_bytes"):
        make_cuda_transfer()


def test_cuda_copies_behind_the_compute_stream_and_waits_for_its_own_end(cuda: FakeCuda) -> None:
    transfer = make_cuda_transfer()
    cuda.log.clear()
    after = transfer.mark()
    assert cuda.log == [("record", after, cuda.compute)]
    assert transfer.copy(Direction.OUT, [5, 0], [1, 3], after) == 0.004
    names = [entry[0] for entry in cuda.log]
    assert names == ["record", "wait", "record", "copy", "record", "synchronize"]
    _, wait, begun, copy, ended, synchronized = cuda.log
    stream = wait[1]
    assert wait[2] is after
    assert stream is not cuda.compute
    assert begun[2] is ended[2] is stream
    assert synchronized[1] is ended[1]
    source, target, params = copy[1:]
    assert (source, target) == ([5, 0], [1, 3])
    assert params[0]["0"].data_ptr() != params[1]["0"].data_ptr() == transfer.host_rows[0].data_ptr()
    assert params[2:] == (stream, 1)


def test_cuda_copies_in_by_a_stream_of_its_own_from_memory_that_does_not_change(cuda: FakeCuda) -> None:
    transfer = make_cuda_transfer()
    for direction in Direction:
        transfer.copy(direction, [5, 0], [1, 3], transfer.mark())
    out, back = (entry for entry in cuda.log if entry[0] == "copy")
    assert back[1:3] == ([1, 3], [5, 0])
    assert back[3][0]["1"].data_ptr() == transfer.host_rows[1].data_ptr()
    assert out[3][2] is not back[3][2]
    assert back[3][3] == 3
    assert [entry[1] for entry in cuda.log if entry[0] == "wait"] == [out[3][2], back[3][2]]
    assert all(stream.priority == 0 for stream in (out[3][2], back[3][2]))


def test_cuda_copy_that_fails_is_waited_for_before_it_is_an_error(cuda: FakeCuda) -> None:
    transfer = make_cuda_transfer()
    cuda.fails = True
    with pytest.raises(RuntimeError, match="batch memcpy failed"):
        transfer.copy(Direction.OUT, [0], [0], transfer.mark())
    assert [entry[0] for entry in cuda.log][-2:] == ["record", "synchronize"]


def test_cuda_touches_no_memory_that_is_not_a_blocks(cuda: FakeCuda) -> None:
    transfer = make_cuda_transfer()
    with pytest.raises(ValueError, match=r"a block is outside 0\.\.5"):
        transfer.copy(Direction.OUT, [6], [0], transfer.mark())
    assert "copy" not in [entry[0] for entry in cuda.log]


def test_cpu_copy_starts_no_thread() -> None:
    """Threads of torch would take the cores of the forward pass; they would be seen as tasks of the process."""
    from pathlib import Path

    def num_tasks() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    large = (Region(0, 2**20, 64),)
    device, host = host_rows(large, 64), host_rows(large, 64)
    transfer = CpuTransfer(device, host)
    seen: list[int] = []
    before = num_tasks()
    thread = threading.Thread(
        target=lambda: seen.extend((transfer.copy(Direction.OUT, range(64), range(64), None) > 0, num_tasks()))
    )
    thread.start()
    thread.join()
    assert seen[0]
    assert seen[1] <= before + 1

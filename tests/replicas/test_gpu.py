"""The seam is the module `pynvml`: what is used of it is faked by the names and shapes of nvidia-ml-py 13.

Mutations tried by hand, each found by a test here: all GPUs read whatever is visible; a GPU that cannot be read told as
0 % busy; percent taken for a ratio; names after a wrong one used.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from replicas.gpu import GpuReader
from slo.snapshots import GpuUse

GIB = 2**30


class FakeNvml(ModuleType):
    """Three GPUs; `faulty` holds the indices of those whose utilisation cannot be read."""

    class NVMLError(Exception):
        """As there: the base of all its errors."""

    def __init__(self, has_driver: bool = True) -> None:
        super().__init__("pynvml")
        self._has_driver = has_driver
        self.is_initialized = False
        self.faulty: set[int] = set()
        self.uuids = ["GPU-aa", "GPU-bb", "GPU-cc"]

    def nvmlInit(self) -> None:
        if not self._has_driver:
            raise self.NVMLError("Driver Not Loaded")
        self.is_initialized = True

    def nvmlDeviceGetCount(self) -> int:
        assert self.is_initialized
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        assert self.is_initialized
        if index >= len(self.uuids):
            raise self.NVMLError("Invalid Argument")
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert self.is_initialized
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        return self.uuids.index(handle)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if self.nvmlDeviceGetIndex(handle) in self.faulty:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=25 * (1 + self.nvmlDeviceGetIndex(handle)), memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GIB, free=79 * GIB, used=(1 + self.nvmlDeviceGetIndex(handle)) * GIB)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def indices_of(reader: GpuReader) -> list[int]:
    return [gpu.index for gpu in reader.read()]


@pytest.mark.usefixtures("nvml")
def test_gpu_reader_tells_ratios_and_bytes() -> None:
    assert GpuReader("1").read() == (GpuUse(1, 0.5, 2 * GIB, 80 * GIB),)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-bb", [1]),
        ("GPU-cc,0", [2, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("MIG-1", []),
    ],
)
def test_gpu_reader_reads_the_visible_ones_only(visible: str | None, expected: list[int]) -> None:
    assert indices_of(GpuReader(visible)) == expected


def test_gpu_reader_leaves_a_gpu_out_that_cannot_be_read_and_says_so_once(
    nvml: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    reader = GpuReader(None)
    nvml.faulty.add(1)
    with caplog.at_level(logging.WARNING, "expresslane.replica"):
        assert indices_of(reader) == indices_of(reader) == [0, 2]
    assert [record.getMessage() for record in caplog.records] == ["gpu=1 reason='NVML cannot read it: Not Supported'"]
    nvml.faulty.clear()
    assert indices_of(reader) == [0, 1, 2]


def test_gpu_reader_has_no_gpus_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    assert GpuReader(None).read() == ()


def test_gpu_reader_has_no_gpus_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuReader(None).read() == ()

"""A fleet that tells what the test says: snapshots, and fakes at the control loop's seams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscale.scaling import ActuatorError
from autoscale.summary import ServedReplicas
from autoscale.window import Answer, Collection
from slo.histogram import Histogram, HistogramCounts
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.snapshots import (
    ClassLoad,
    ClassTraffic,
    EngineSnapshot,
    GpuUse,
    IngressSnapshot,
    KVUse,
    PreemptionKind,
)

P0, P1, P2 = PriorityClass


def latencies(values_s: Iterable[float]) -> HistogramCounts:
    histogram = Histogram()
    for value_s in values_s:
        histogram.observe(value_s)
    return histogram.counts()


def ingress(
    source_id: str = "ingress",
    classes: Mapping[PriorityClass, ClassTraffic] | None = None,
    unclassified: Mapping[Outcome, int] | None = None,
    age_s: float = 0,
) -> IngressSnapshot:
    return IngressSnapshot(source_id, age_s, classes or {}, unclassified or {})


def completed(number: int, *, tbt_s: Iterable[float] = (), in_flight: int = 0) -> ClassTraffic:
    """A class that has completed `number` requests, with these gaps between tokens."""
    return ClassTraffic(
        tbt=latencies(tbt_s), outcomes={Outcome.COMPLETED: number}, num_held=number, num_in_flight=in_flight
    )


def engine(
    source_id: str = "engine",
    classes: Mapping[PriorityClass, ClassLoad] | None = None,
    *,
    steps: int = 0,
    saturation: float = 0,
    slots: int = 8,
    kv: KVUse | None = None,
    preempted: int = 0,
    gpus: tuple[GpuUse, ...] = (),
    age_s: float = 0,
) -> EngineSnapshot:
    if preempted:
        classes = {**(classes or {}), P2: ClassLoad(num_preempted={PreemptionKind.PAUSED: preempted})}
    return EngineSnapshot(
        source_id=source_id,
        age_s=age_s,
        classes=classes or {},
        max_num_seqs=slots,
        kv=kv or KVUse(num_blocks=100, num_used_blocks=25, num_allocated_slots=400, num_filled_slots=390),
        num_step_tokens=10 * steps,
        saturation_ratio=saturation,
        gpus=gpus,
    )


def collection(
    now_s: float,
    ingresses: Iterable[IngressSnapshot] = (),
    engines: Iterable[EngineSnapshot] = (),
    silent_ingresses: int = 0,
    silent_engines: int = 0,
) -> Collection:
    """What a period brings whose answers are received at `now_s`."""
    return Collection(
        tuple(Answer(s, now_s - s.age_s) for s in ingresses),
        tuple(Answer(s, now_s - s.age_s) for s in engines),
        silent_ingresses,
        silent_engines,
    )


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeCollector:
    """Gives what the test puts into `ingresses` and `engines`, or raises `error`."""

    clock: FakeClock
    ingresses: list[IngressSnapshot] = field(default_factory=list)
    engines: list[EngineSnapshot] = field(default_factory=list)
    error: Exception | None = None

    async def collect(self) -> Collection:
        if self.error is not None:
            raise self.error
        return collection(self.clock.now_s, self.ingresses, self.engines)


@dataclass
class FakeServe:
    """Serve, at the actuator's seam: replicas start when `start()` is called, and drain until `drained()` is."""

    running: int = 1
    target: int = 1
    draining: int = 0
    read_error: ActuatorError | None = None
    set_error: ActuatorError | None = None
    targets: list[int] = field(default_factory=list)

    async def read(self) -> ServedReplicas:
        if self.read_error is not None:
            raise self.read_error
        return ServedReplicas(self.target, self.running, max(0, self.target - self.running), self.draining)

    async def set_target(self, target: int) -> None:
        if self.set_error is not None:
            raise self.set_error
        self.targets.append(target)
        self.target = target
        if target < self.running:
            self.draining, self.running = self.running - target, target

    def start(self) -> None:
        self.running = self.target

    def drained(self) -> None:
        self.draining = 0


@dataclass
class FakeMemory:
    """Keeps the value across control loops, as the cluster does."""

    value: bytes | None = None
    error: Exception | None = None

    async def load(self) -> bytes | None:
        return self.value

    async def save(self, value: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.value = value

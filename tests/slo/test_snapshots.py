"""Mutations tried by hand, each found by a test here: a mutable snapshot; a default that is shared and not empty."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from slo.histogram import BATCH_BOUNDS, LATENCY_BOUNDS_S, Histogram
from slo.messages import Recovery
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
    SwapRefusal,
    SwapUse,
)

ROOT = Path(__file__).parents[2]


def latencies(*values_s: float) -> Histogram:
    histogram = Histogram()
    for value_s in values_s:
        histogram.observe(value_s)
    return histogram


TRAFFIC = ClassTraffic(ttft=latencies(0.1).counts(), outcomes={Outcome.SHED: 2}, num_missed=2, num_in_flight=1)
LOAD = ClassLoad(1, 2, 3, 4, latencies(0.5).counts(), {PreemptionKind.PAUSED: 5})
SNAPSHOTS = [
    IngressSnapshot("ingress", 0.5, {PriorityClass.P0: TRAFFIC}, {Outcome.REJECTED: 1}, {Recovery.AGAIN: 2}),
    EngineSnapshot(
        source_id="engine",
        age_s=1.5,
        classes={PriorityClass.P2: LOAD},
        max_num_seqs=8,
        kv=KVUse(100, 50, 800, 790, 7, 6),
        swap=SwapUse(bytes_out=1, refusals={SwapRefusal.HOST_FULL: 2}),
        gpus=(GpuUse(0, 0.5, 1, 2),),
    ),
]

UNPICKLE = """
import pickle, sys
snapshots = pickle.loads(sys.stdin.buffer.read())
heavy = {name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "ray", "numpy", "pydantic", "starlette"}
print(len(snapshots), sorted(heavy))
"""


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda snapshot: snapshot.source_id)
def test_snapshot_survives_pickling(snapshot: object) -> None:
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_unpickling_a_snapshot_imports_nothing_heavy_when_the_process_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNPICKLE], input=pickle.dumps(SNAPSHOTS), capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.decode().strip() == f"{len(SNAPSHOTS)} []"


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda snapshot: snapshot.source_id)
def test_snapshot_cannot_change_once_made(snapshot: object) -> None:
    with pytest.raises(FrozenInstanceError):
        snapshot.age_s = 0.0  # type: ignore[attr-defined]


def test_defaults_are_empty_histograms_of_their_kind() -> None:
    traffic, load = ClassTraffic(), ClassLoad()
    engine = EngineSnapshot("e", 0.0, {}, 1, KVUse(1, 0, 0, 0))
    assert {h.bounds for h in (traffic.ttft, traffic.tbt, traffic.e2e, load.queue_wait)} == {LATENCY_BOUNDS_S}
    assert (engine.batch_sizes.bounds, engine.batch_sizes.count, load.queue_wait.count) == (BATCH_BOUNDS, 0, 0)


@pytest.mark.parametrize("labels", [PreemptionKind, SwapRefusal, Recovery])
def test_enums_are_metric_labels(labels: type[PreemptionKind] | type[SwapRefusal] | type[Recovery]) -> None:
    values = [str(member.value) for member in labels]
    assert all(value == value.lower() and value.isidentifier() for value in values)
    assert len(set(values)) == len(values)

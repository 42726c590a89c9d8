import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Recovery, Resumed, Resumption, Standing
from slo.priority import PriorityClass

ROOT = Path(__file__).parents[2]
MESSAGES = [
    GenerateCall(Endpoint.CHAT, {"messages": [{"role": "user", "content": "x"}]}, PriorityClass.P0, "id-1"),
    GenerateCall(Endpoint.COMPLETION, {"prompt": [1, 2]}, PriorityClass.P2, "id-2"),
    Document('{"id":"x"}'),
    Chunk("data: {}\n\n"),
    Chunk("data: [DONE]\n\n", False, (7, 8), "stop"),
    GenerateCall(Endpoint.CHAT, {}, PriorityClass.P1, "id-3", Resumption((7, 8), 1700, "stop", 1)),
    GenerateCall(Endpoint.CHAT, {}, PriorityClass.P1, "id-4", standing=Standing(is_surplus=True)),
    Resumed(Recovery.FROM_TOKENS, 2),
    Failure(Rejected("bad", "model", RejectReason.UNKNOWN_MODEL)),
    Failure(Shed("full", 1.0)),
    Failure(ReplicaLost("gone")),
    Failure(EngineFailed("fault")),
]

UNPICKLE = """
import pickle, sys
messages = pickle.loads(sys.stdin.buffer.read())
heavy = {name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "ray", "numpy", "pydantic", "starlette"}
print(len(messages), sorted(heavy))
"""


def test_unpickling_a_message_imports_neither_vllm_nor_torch_when_the_process_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNPICKLE], input=pickle.dumps(MESSAGES), capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.decode().strip() == f"{len(MESSAGES)} []"


@pytest.mark.parametrize("message", MESSAGES[:7], ids=lambda message: type(message).__name__)
def test_message_survives_pickling(message: GenerateCall | Document | Chunk) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_failure_carries_its_error_whole_when_pickled() -> None:
    error = pickle.loads(pickle.dumps(Failure(Rejected("bad", "model", RejectReason.UNKNOWN_MODEL)))).error
    assert (error.message, error.param, error.reason) == ("bad", "model", RejectReason.UNKNOWN_MODEL)


def test_message_cannot_change_once_made() -> None:
    with pytest.raises(FrozenInstanceError):
        Chunk("data: {}\n\n").events = "other"  # type: ignore[misc]


@pytest.mark.parametrize("priority", PriorityClass)
def test_call_counts_as_one_class_less_when_it_is_its_tenants_surplus(priority: PriorityClass) -> None:
    assert GenerateCall(Endpoint.CHAT, {}, priority, "id").counts_as is priority
    assert (
        GenerateCall(Endpoint.CHAT, {}, priority, "id", standing=Standing(is_surplus=True)).counts_as
        is priority.demoted()
    )

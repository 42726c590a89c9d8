"""Mutations tried by hand, each found by a test here: the first model for any name; an adapter asked of the first
alone; one model's silence taken for all."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.api import create_api
from app.gate.access import Access
from app.gate.entry import Entry
from app.gate.limits import derive_limits
from app.gate.quota import Quotas
from app.served import MAX_TOLD, ServedModel, ServedModels, serve_model, unknown_model
from slo.errors import Rejected, RejectReason, ReplicaLost
from slo.messages import Document
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.app.conftest import RecordLines
from tests.app.fake_dispatcher import FakeDispatcher

P1 = PriorityClass.P1
SETTINGS = parse_settings(
    {
        "models": [
            {"model": {"source": "/m/one", "names": ["one", "uno"]}, "engine": {"adapters_dir": "/adapters/one"}},
            {"model": {"source": "/m/two"}, "engine": {"adapters": {"legal": "/a"}, "adapters_dir": "/adapters/two"}},
            {"model": {"source": "org/three"}},
        ]
    }
)


class Scene:
    """Three models, each over a dispatcher that answers with its name; two have adapters in a directory."""

    def __init__(self, **listed: Any) -> None:
        self.dispatchers = {
            name: FakeDispatcher(
                Document(json.dumps({"answered_by": name})),
                models=[{"id": i} for i in names] if isinstance(names, list) else names,
            )
            for name, names in {"one": ["one"], "two": ["two"], "org/three": ["org/three"], **listed}.items()
        }
        quotas, access = Quotas(1), Access(None)
        self.models: list[ServedModel] = [
            serve_model(self.dispatchers[name], of_model, entry=Entry(of_model, access, quotas))
            for name, of_model in SETTINGS.by_model.items()
        ]
        self.served = ServedModels(self.models)

    async def found(self, name: object) -> str:
        return (await self.served.find(name)).name


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, "one"), ("one", "one"), ("uno", "one"), ("two", "two"), ("legal", "two"), ("org/three", "org/three")],
)
async def test_model_is_found_by_each_of_its_names(name: str | None, expected: str) -> None:
    assert await Scene().found(name) == expected


async def test_adapter_is_found_where_it_lies_and_of_two_with_the_first() -> None:
    scene = Scene(one=["one", "both"], two=["two", "red", "both"])
    assert [await scene.found(name) for name in ("red", "both")] == ["two", "one"]


async def test_unknown_name_is_refused_and_what_is_served_is_told() -> None:
    with pytest.raises(Rejected) as refused:
        await Scene(two=["two", "red"]).found("none")
    assert refused.value.reason is RejectReason.UNKNOWN_MODEL
    assert refused.value.message.endswith("served: one, uno, two, legal, red, org/three")


async def test_model_whose_replicas_cannot_be_asked_decides_about_an_unknown_name() -> None:
    """With none running the request itself may start one. A name that another has is that one's."""
    scene = Scene(one=ReplicaLost("none is there"), two=["two", "red"])
    assert [await scene.found(name) for name in ("red", "none")] == ["two", "one"]


@pytest.mark.parametrize("name", [7, True, ["one"], {"a": 1}])
async def test_name_of_another_type_is_refused(name: object) -> None:
    with pytest.raises(Rejected, match="model: must be a string") as refused:
        await Scene().found(name)
    assert refused.value.reason is RejectReason.INVALID


def test_error_tells_the_first_names_only() -> None:
    message = unknown_model("x" * 1000, [f"name-{i}" for i in range(MAX_TOLD + 5)]).message
    assert message.endswith(f"name-{MAX_TOLD - 1}, and 5 more")
    assert len(message) < 500


async def test_models_are_listed_also_when_one_has_no_replica_to_ask() -> None:
    """A request would start one. It is not asked, which would take a while."""
    scene = Scene(one=ZeroDivisionError(), two=ReplicaLost("gone"))
    scene.models[0].entry.gate.set_num_replicas(0)
    listed = await scene.served.list_models()
    assert [model["id"] for model in listed] == ["one", "uno", "two", "legal", "org/three"]
    assert all(model["object"] == "model" for model in listed if model["id"] != "org/three")


async def test_nothing_is_listed_when_no_replica_of_any_model_answers() -> None:
    nobody = dict.fromkeys(("one", "two", "org/three"), ReplicaLost("gone"))
    with pytest.raises(ReplicaLost):
        await Scene(**nobody).served.list_models()
    with pytest.raises(ZeroDivisionError):
        await Scene(two=ZeroDivisionError()).served.list_models()


async def test_requests_are_answered_by_their_models_and_counted_with_them(records: RecordLines) -> None:
    scene = Scene()
    transport = httpx.ASGITransport(create_api(scene.models, SETTINGS))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name, answered_by in (("two", "two"), ("uno", "one"), (None, "one"), ("none", None)):
            body = {"messages": [{"role": "user", "content": "x"}], **({} if name is None else {"model": name})}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer.get("answered_by") == answered_by, answer
    counted = {model.name: dict(model.metrics.snapshot({}).classes[P1].outcomes) for model in scene.models}
    assert counted == {
        "one": {Outcome.COMPLETED: 2, Outcome.REJECTED: 1},  # who names no model counts with the first
        "two": {Outcome.COMPLETED: 1},
        "org/three": {},
    }
    assert [line.priority for line in records.closed] == ["P1"] * 4
    assert [len(dispatcher.calls) for dispatcher in scene.dispatchers.values()] == [2, 1, 0]


def test_gates_are_the_models_own_and_share_what_guards_the_process() -> None:
    limits = [derive_limits(of_model, 1) for of_model in SETTINGS.by_model.values()]
    whole = parse_settings({}).ingress.max_ongoing_requests
    assert len({id(model.entry.gate) for model in Scene().models}) == 3
    assert sum(limit.classes[P1].queue.sequences for limit in limits) <= whole
    assert sum(limit.max_held_bytes for limit in limits) <= parse_settings({}).admission.max_held_bytes

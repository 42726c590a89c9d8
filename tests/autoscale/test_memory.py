"""Over a fake of Ray's store; the real one is in tests/e2e/test_autoscale.py."""

from __future__ import annotations

import inspect

import pytest
from ray.experimental import internal_kv

from autoscale.memory import NAMESPACE, RayMemory


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], bytes]:
    values: dict[tuple[str, str], bytes] = {}

    def put(key: str, value: bytes, overwrite: bool, *, namespace: str) -> None:
        if overwrite or (namespace, key) not in values:
            values[namespace, key] = value

    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key, *, namespace: values.get((namespace, key)))
    monkeypatch.setattr(internal_kv, "_internal_kv_put", put)
    return values


async def test_memory_gives_what_was_saved_last(store: dict[tuple[str, str], bytes]) -> None:
    memory = RayMemory("expresslane")
    assert await memory.load() is None
    for value in (b"one", b"two"):
        await memory.save(value)
        assert await RayMemory("expresslane").load() == value
    assert list(store) == [(NAMESPACE, "autoscale/expresslane")]


async def test_memory_of_another_application_is_another(store: dict[tuple[str, str], bytes]) -> None:
    await RayMemory("expresslane").save(b"ours")
    assert await RayMemory("other").load() is None
    assert len(store) == 1


def test_rays_store_is_as_the_memory_calls_it() -> None:
    assert list(inspect.signature(internal_kv._internal_kv_get).parameters) == ["key", "namespace"]
    assert list(inspect.signature(internal_kv._internal_kv_put).parameters) == [
        "key",
        "value",
        "overwrite",
        "namespace",
    ]

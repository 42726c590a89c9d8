"""Mutations tried by hand, each found by a test here: one question for each request; a name of any form asked for; no
replica to ask taken for no such name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.model_names import FRESH_S, ModelNames
from slo.errors import ReplicaLost, ServingError


class Replicas:
    """Tell what they have, and count how often they are asked."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.num_asked = 0
        self.error: ServingError | None = None
        self.now_s = 0.0

    async def models(self) -> list[dict[str, Any]]:
        self.num_asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return [{"id": name} for name in self.names]

    def known(self) -> ModelNames:
        return ModelNames(("tiny", "static"), self.models, lambda: self.now_s)


async def is_known(names: ModelNames, name: str) -> bool | None:
    return names.has(name) or await names.look(name)


async def test_names_of_the_settings_are_known_without_a_question() -> None:
    replicas = Replicas()
    names = replicas.known()
    for name in ("tiny", "static"):
        assert await is_known(names, name)
    assert replicas.num_asked == 0


async def test_adapter_is_known_as_soon_as_a_replica_has_it() -> None:
    replicas = Replicas("tiny", "red")
    names = replicas.known()
    assert await is_known(names, "red")
    assert not await is_known(names, "blue")
    replicas.names.append("blue")
    replicas.now_s += 2 * FRESH_S
    assert await is_known(names, "blue")
    replicas.now_s += 1000
    assert await is_known(names, "red"), "a name that was seen passes at once"
    assert replicas.num_asked == 2


async def test_flood_of_unknown_names_causes_one_question_a_period() -> None:
    replicas = Replicas("tiny")
    names = replicas.known()
    known = await asyncio.gather(*(is_known(names, f"no-{i}") for i in range(100)))
    assert not any(known)
    assert replicas.num_asked == 1


@pytest.mark.parametrize("name", ["../red", "a/b", "", "a" * 500])
async def test_name_that_no_directory_can_have_causes_no_question(name: str) -> None:
    replicas = Replicas("tiny")
    assert not await is_known(replicas.known(), name)
    assert replicas.num_asked == 0


async def test_nothing_is_said_where_no_replica_can_be_asked() -> None:
    replicas = Replicas("tiny")
    replicas.error = ReplicaLost("none is there")
    names = replicas.known()
    assert await is_known(names, "red") is None
    assert await is_known(names, "blue") is None
    assert replicas.num_asked == 1, "waiting for nobody's answer takes long"
    replicas.error = None
    replicas.now_s += 2 * FRESH_S
    assert await is_known(names, "red") is False


async def test_without_a_directory_nobody_is_asked() -> None:
    assert await is_known(ModelNames(("tiny",)), "red") is False


async def test_known_names_are_those_of_the_settings_and_those_seen() -> None:
    replicas = Replicas("tiny", "red", "blue")
    names = replicas.known()
    assert names.known == ("tiny", "static")
    await names.look("red")
    assert names.known == ("tiny", "static", "blue", "red")

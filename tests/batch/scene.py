"""An owner of files and batches on a database of its own, whose lines are answered by a script."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch.database import Database
from batch.owner import BatchOwner
from batch.running import DeskAway
from slo.batch import CHUNK_BYTES, BatchObject, FileObject, LineAnswer, LineCall, NewBatch, NewFile
from slo.errors import ServingError
from slo.settings import Settings, parse_settings

TENANT = "chat"
MODEL = "tiny"
CHAT = "/v1/chat/completions"
LIMIT_S = 60
"""After this a test that waits has failed; no rule depends on it."""


def settings_of(directory: Path, **batch: Any) -> Settings:
    """Settings with the database in `directory`; four lines in flight unless told."""
    values = {"path": str(directory / "batches.sqlite3"), "max_in_flight": 4, "lock_timeout_s": 1, **batch}
    return parse_settings({"model": {"names": [MODEL]}, "batch": values})


def line(custom_id: str, **changes: Any) -> dict[str, Any]:
    """A good line, as it is or changed."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": custom_id}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def jsonl(*lines: Any) -> bytes:
    """An input file."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def good(call: LineCall) -> LineAnswer:
    """What an engine answers."""
    told = json.loads(call.body)["messages"][0]["content"]
    return LineAnswer(200, json.dumps({"id": call.request_id, "told": told}), None, 1)


def refused(error: ServingError, status: int = 400) -> LineAnswer:
    """What an ingress answers that does not answer well."""
    return LineAnswer(status, json.dumps({"error": {"message": error.message}}), error, 1)


Answerer = Callable[[LineCall], LineAnswer]


@dataclass
class FakeDesk:
    """Answers by `answerer`, at the seam `batch.running.LineDesk`.

    Attributes:
        gate: an answer is given while it is set, but to the first `num_free` calls at once.
        asked: how often each line was asked, by its prompt.
        lost: so many of the next calls find no ingress.
    """

    answerer: Answerer = good
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: Counter[str] = field(default_factory=Counter)
    calls: list[LineCall] = field(default_factory=list)
    num_in_flight: int = 0
    most_in_flight: int = 0
    num_cancelled: int = 0
    lost: int = 0
    num_free: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def answer(self, call: LineCall) -> LineAnswer:
        self.calls.append(call)
        is_free = len(self.calls) <= self.num_free
        self.asked[json.loads(call.body)["messages"][0]["content"]] += 1
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            if not is_free:
                await self.gate.wait()
            await asyncio.sleep(0)
            if self.lost:
                self.lost -= 1
                raise DeskAway
            return self.answerer(call)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_in_flight -= 1


@dataclass
class Clock:
    """Unix seconds, as the test says."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """An owner, and what stands around it."""

    owner: BatchOwner
    desk: FakeDesk
    clock: Clock
    settings: Settings

    async def upload(self, content: bytes, tenant: str = TENANT) -> FileObject:
        """A file with this content."""
        file_id = await self.owner.begin_upload(NewFile(tenant, "in.jsonl"))
        for first in range(0, len(content), CHUNK_BYTES):
            await self.owner.append(tenant, file_id, content[first : first + CHUNK_BYTES])
        return await self.owner.finish_upload(tenant, file_id, None)

    async def begin(self, content: bytes, tenant: str = TENANT, **changes: Any) -> BatchObject:
        """A batch of a file with this content."""
        return await self.begin_batch_of(tenant, (await self.upload(content, tenant)).id, **changes)

    async def begin_batch_of(self, tenant: str, file_id: str, **changes: Any) -> BatchObject:
        """A batch of a file that is there."""
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **changes}
        return await self.owner.create_batch(tenant, NewBatch.model_validate(asked))

    async def ended(self, batch: BatchObject, tenant: str = TENANT) -> BatchObject:
        """The batch when it has ended."""
        return await self.when(batch, lambda told: not told.status.is_open, tenant)

    async def when(
        self, batch: BatchObject, condition: Callable[[BatchObject], bool], tenant: str = TENANT
    ) -> BatchObject:
        """The batch when the condition holds."""
        async with asyncio.timeout(LIMIT_S):
            while not condition(told := await self.owner.batch(tenant, batch.id)):
                self.owner.runner.check_invariants()
                await asyncio.sleep(0.002)
        return told

    async def half_way(self, batch_of: bytes, **changes: Any) -> BatchObject:
        """A batch of which ten lines are answered, and four are in flight."""
        self.desk.num_free = 10
        self.desk.gate.clear()
        begun = await self.begin(batch_of, **changes)
        await self.when(begun, lambda told: told.request_counts.completed == 10)
        await self.until(lambda: self.desk.num_in_flight == 4)
        return begun

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something else."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def content(self, file_id: str | None, tenant: str = TENANT) -> bytes:
        """A whole file."""
        assert file_id is not None
        parts, cursor = [], 0
        while True:
            page = await self.owner.content(tenant, file_id, cursor)
            parts.append(page.content)
            if page.next_cursor is None:
                return b"".join(parts)
            cursor = page.next_cursor

    async def results(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of an output or error file."""
        return [json.loads(each) for each in (await self.content(file_id)).splitlines()]


@asynccontextmanager
async def scene(settings: Settings, desk: FakeDesk | None = None, clock: Clock | None = None) -> AsyncIterator[Scene]:
    """An owner that runs; a second one on the same settings goes on where the first has stopped."""
    desk, clock = desk or FakeDesk(), clock or Clock()
    database = Database()
    owner = BatchOwner(database, desk, settings, clock)
    await database.take_over(settings.batch, owner.prepare)
    try:
        yield Scene(owner, desk, clock, settings)
    finally:
        await owner.close()

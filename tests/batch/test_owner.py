"""Batches from upload to output file, on a real database, with a desk that answers by a script.

Mutations tried by hand, each found by a test here: a line that has ended run again by the next owner; a cancelled batch
that ends as completed; an expired line left out; the input deleted under a batch; another tenant's file read; a retry
without its pause; more in flight than may be.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from batch import files
from batch.tables import ChunkRow
from slo.batch import BatchStatus, LineAnswer, LineCall, Listing, NewFile
from slo.errors import EngineFailed, OverQuota, Rejected, RejectReason, ReplicaLost
from slo.outcome import LineOutcome
from tests.batch.scene import CHAT, FakeDesk, good, jsonl, line, refused, scene, settings_of

KEPT_AN_HOUR = {"anchor": "created_at", "seconds": 3600}
NAMES = [f"line-{n}" for n in range(30)]
FILE = jsonl(*(line(name) for name in NAMES))


class OneByOne(FakeDesk):
    """Answers a line when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_of: list[str] = []
        self.held: list[tuple[str, asyncio.Event]] = []
        self.holds = True

    async def answer(self, call: LineCall) -> LineAnswer:
        """As the desk, after `give`."""
        self.asked_of.append(call.tenant)
        if self.holds:
            told = asyncio.Event()
            self.held.append((call.tenant, told))
            await told.wait()
        return await super().answer(call)

    def give(self, tenant: str) -> None:
        """Answers the oldest line that is held of this tenant."""
        first = next(each for each in self.held if each[0] == tenant)
        self.held.remove(first)
        first[1].set()

    def give_all(self) -> None:
        """Answers what is held, and what comes."""
        self.holds = False
        while self.held:
            self.give(self.held[0][0])


async def test_batch_is_run_and_its_output_has_each_line_once_in_order(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        begun = await s.begin(FILE, metadata={"night": "1"})
        assert begun.status is BatchStatus.VALIDATING
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
        file = await s.owner.file("chat", batch.output_file_id or "")
        assert file.bytes == len(await s.content(batch.output_file_id))
    assert (batch.status, batch.error_file_id) == (BatchStatus.COMPLETED, None)
    assert batch.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
    assert batch.metadata == {"night": "1"}
    assert [each["custom_id"] for each in output] == NAMES
    assert [each["response"]["body"]["told"] for each in output] == NAMES
    assert {each["response"]["status_code"] for each in output} == {200}
    assert s.desk.asked == dict.fromkeys(NAMES, 1)
    assert 1 < s.desk.most_in_flight <= 4


async def test_faults_of_lines_go_to_the_error_file_with_what_http_would_answer(tmp_path: Path) -> None:
    def answer(call: LineCall) -> LineAnswer:
        return refused(Rejected("too long", param="messages")) if b"line-3" in call.body else good(call)

    async with scene(settings_of(tmp_path), FakeDesk(answer)) as s:
        batch = await s.ended(await s.begin(jsonl(*(line(f"line-{n}") for n in range(5)))))
        output, errors = await s.results(batch.output_file_id), await s.results(batch.error_file_id)
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 1)
    assert [each["custom_id"] for each in output] == ["line-0", "line-1", "line-2", "line-4"]
    (error,) = errors
    assert (error["custom_id"], error["error"]) == ("line-3", None)
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["message"] == "too long"


async def test_bad_file_fails_its_batch_with_the_line_at_fault_and_nothing_runs(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        batch = await s.ended(await s.begin(jsonl(line("a"), line("a"), {"custom_id": "b"})))
        assert (await s.owner.snapshot()).num_open == 0
    assert batch.status is BatchStatus.FAILED
    assert batch.errors is not None
    assert [(fault.line, fault.code) for fault in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "missing_required_parameter"),
    ]
    assert not s.desk.calls
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


async def test_line_refused_for_load_waits_and_is_tried_again(tmp_path: Path) -> None:
    refusals = [OverQuota("used up", 1.2), ReplicaLost("gone")]

    def answer(call: LineCall) -> LineAnswer:
        return refused(refusals.pop(), 429) if refusals else good(call)

    async with scene(settings_of(tmp_path, max_in_flight=1), FakeDesk(answer)) as s:
        begun = await s.begin(jsonl(line("a"), line("b")))
        await s.until(lambda: len(s.desk.calls) == 1)
        await asyncio.sleep(0.1)
        assert len(s.desk.calls) == 1, "its pause is not over"
        batch = await s.ended(begun)
        snapshot = await s.owner.snapshot()
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 0)
    assert sum(s.desk.asked.values()) == 4
    assert snapshot.num_retries == 2
    assert snapshot.num_ended[LineOutcome.COMPLETED] == 2


async def test_line_that_its_engine_fails_is_tried_so_often_and_then_told(tmp_path: Path) -> None:
    def answer(call: LineCall) -> LineAnswer:
        return refused(EngineFailed("broken"), 500) if b"line-0" in call.body else good(call)

    async with scene(settings_of(tmp_path, max_attempts=2), FakeDesk(answer)) as s:
        batch = await s.ended(await s.begin(jsonl(line("line-0"), line("line-1"))))
        (error,) = await s.results(batch.error_file_id)
    assert s.desk.asked == {"line-0": 2, "line-1": 1}
    assert error["response"]["status_code"] == 500


async def test_lost_ingress_costs_a_line_nothing_but_time(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path, max_attempts=1), FakeDesk(lost=3)) as s:
        batch = await s.ended(await s.begin(FILE))
    assert batch.request_counts.completed == 30
    assert sum(s.desk.asked.values()) == 33


async def test_cancelled_batch_ends_what_is_in_flight_and_keeps_its_results(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        begun = await s.half_way(FILE)
        cancelling = await s.owner.cancel_batch("chat", begun.id)
        assert cancelling.status is BatchStatus.CANCELLING
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
        with pytest.raises(Rejected, match="has ended"):
            await s.owner.cancel_batch("chat", begun.id)
        snapshot = await s.owner.snapshot()
    assert batch.status is BatchStatus.CANCELLED
    assert s.desk.num_cancelled == 4
    assert len(output) == batch.request_counts.completed == 10
    assert batch.error_file_id is None
    assert snapshot.num_ended[LineOutcome.CANCELLED] == 20
    assert (snapshot.num_open, snapshot.num_pending, snapshot.num_in_flight) == (0, 0, 0)


async def test_expired_batch_tells_each_line_that_has_not_run(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        begun = await s.half_way(FILE, completion_window="1h")
        s.clock.now += 3601
        batch = await s.ended(begun)
        output, errors = await s.results(batch.output_file_id), await s.results(batch.error_file_id)
    assert batch.status is BatchStatus.EXPIRED
    assert batch.expired_at == int(s.clock.now)
    assert sorted(each["custom_id"] for each in output + errors) == sorted(NAMES)
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}
    assert batch.request_counts.model_dump() == {"total": 30, "completed": len(output), "failed": len(errors)}


async def test_next_owner_runs_what_was_in_flight_again_and_nothing_else(tmp_path: Path) -> None:
    settings, desk = settings_of(tmp_path), FakeDesk()
    async with scene(settings, desk) as s:
        begun = await s.half_way(FILE)
    desk.gate.set()
    async with scene(settings, desk) as s:
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
    assert [each["custom_id"] for each in output] == NAMES
    assert sum(desk.asked.values()) == 34
    assert max(desk.asked.values()) == 2


async def test_files_and_batches_are_their_tenants_alone(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        begun = await s.begin(FILE)
        batch = await s.ended(begun)
        for asked in (
            s.owner.batch("other", batch.id),
            s.owner.cancel_batch("other", batch.id),
            s.owner.file("other", batch.input_file_id),
            s.owner.content("other", batch.output_file_id or "", 0),
            s.owner.delete_file("other", batch.output_file_id or ""),
            s.begin_batch_of("other", batch.input_file_id),
        ):
            with pytest.raises(Rejected) as refusal:
                await asked
            assert refusal.value.reason is RejectReason.NOT_FOUND


async def test_tenants_take_turns_and_one_tenants_batches_are_run_in_order(tmp_path: Path) -> None:
    desk = OneByOne()
    async with scene(settings_of(tmp_path, max_in_flight=2), desk) as s:
        many = [await s.begin(FILE), await s.begin(FILE)]
        await s.until(lambda: len(desk.held) == 2)
        other = await s.begin(jsonl(line("x"), line("y")), tenant="other")
        await s.when(other, lambda told: told.status is BatchStatus.IN_PROGRESS, "other")
        await s.upload(FILE)  # written by the one thread that writes: the runner knows of the write before it, too
        turns = ["chat", "chat"]
        for answered, follows in (("chat", "other"), ("chat", "chat"), ("other", "other"), ("chat", "chat")):
            desk.give(answered)
            turns.append(follows)
            await s.until(lambda: len(desk.asked_of) == len(turns))
            assert desk.asked_of == turns
        desk.give_all()
        assert (await s.ended(other, "other")).request_counts.completed == 2
        second = await s.ended(many[1])
        first = await s.owner.batch("chat", many[0].id)
        assert first.status is BatchStatus.COMPLETED
        assert (first.completed_at or 0) <= (second.completed_at or 0)
    of_chat = [call.request_id.rpartition("_")[0] for call in desk.calls if call.tenant == "chat"]
    assert of_chat == sorted(of_chat, key=of_chat.index), "the later batch did not wait for the earlier one"


async def test_tenants_take_turns_where_one_line_is_in_flight_at_a_time(tmp_path: Path) -> None:
    desk = OneByOne()
    async with scene(settings_of(tmp_path, max_in_flight=1), desk) as s:
        await s.begin(FILE)
        await s.until(lambda: len(desk.held) == 1)
        other = await s.begin(jsonl(line("x"), line("y")), tenant="other")
        await s.when(other, lambda told: told.status is BatchStatus.IN_PROGRESS, "other")
        await s.upload(FILE)
        desk.give_all()
        assert (await s.ended(other, "other")).request_counts.completed == 2
    assert desk.asked_of[:5] == ["chat", "other", "chat", "other", "chat"]


async def test_input_of_an_open_batch_cannot_be_deleted_and_results_can(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        s.desk.gate.clear()
        begun = await s.begin(FILE)
        with pytest.raises(Rejected, match=begun.id) as refusal:
            await s.owner.delete_file("chat", begun.input_file_id)
        assert refusal.value.reason is RejectReason.IN_USE
        s.desk.gate.set()
        batch = await s.ended(begun)
        for file_id in (begun.input_file_id, batch.output_file_id or ""):
            assert (await s.owner.delete_file("chat", file_id)).id == file_id
            with pytest.raises(Rejected):
                await s.owner.file("chat", file_id)
        assert (await s.owner.batch("chat", begun.id)).request_counts.completed == 30
        assert batch.endpoint == CHAT


async def test_so_many_batches_may_be_open_and_no_more(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path, max_open_batches=2)) as s:
        s.desk.gate.clear()
        begun = [await s.begin(FILE) for _ in range(2)]
        with pytest.raises(OverQuota, match="2 batches have not ended"):
            await s.begin(FILE)
        await s.begin(FILE, tenant="other")
        await s.owner.cancel_batch("chat", begun[0].id)
        await s.ended(begun[0])
        await s.begin(FILE)


async def test_files_go_when_their_time_is_over_but_not_under_an_open_batch(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        s.desk.gate.clear()
        file_id = await s.owner.begin_upload(NewFile("chat", "in"))
        await s.owner.append("chat", file_id, jsonl(line("a")))
        file = await s.owner.finish_upload("chat", file_id, 3600)
        begun = await s.begin_batch_of("chat", file.id, completion_window="7d", output_expires_after=KEPT_AN_HOUR)
        await s.until(lambda: s.desk.num_in_flight == 1)
        s.clock.now += 3601
        await s.owner._database.write(lambda session: files.remove_old(session, int(s.clock.now)))
        assert (await s.owner.file("chat", file.id)).expires_at == file.created_at + 3600
        s.desk.gate.set()
        batch = await s.ended(begun)
        assert (await s.owner.file("chat", batch.output_file_id or "")).expires_at == int(s.clock.now) + 3600
        s.clock.now += 3601
        await s.owner._database.write(lambda session: files.remove_old(session, int(s.clock.now)))
        assert (await s.owner.list_files("chat", Listing(None, 9), None)).data == ()
        assert (await s.owner.batch("chat", begun.id)).output_file_id is None


async def test_uploads_of_a_former_owner_are_forgotten(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    async with scene(settings) as s:
        file_id = await s.owner.begin_upload(NewFile("chat", "in"))
        await s.owner.append("chat", file_id, b"x")
    async with scene(settings) as s:
        with pytest.raises(Rejected, match="given up"):
            await s.owner.append("chat", file_id, b"x")
        chunks = await s.owner._database.read(lambda session: session.scalars(select(ChunkRow)).all())
        assert chunks == []

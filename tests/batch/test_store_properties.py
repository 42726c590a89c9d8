"""Whatever is done with a batch, in whatever order: each line ends once, the counts are those of the lines, and the
files show what ended.

Mutations tried by hand, each found by this test: a result over another one; a count without its line; lines of a batch
that has ended left behind."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from batch import batches, files, lines
from batch.database import Database
from batch.lines import LineResult
from batch.tables import BatchRow, LineRow
from batch.validation import CheckedLine
from slo.batch import BatchObject, BatchStatus, NewBatch, NewFile
from slo.outcome import LineOutcome
from slo.settings.batch import BatchSettings

NUM_LINES = 8
OUTCOMES = (LineOutcome.COMPLETED, LineOutcome.FAILED, LineOutcome.EXPIRED)
SETTINGS = BatchSettings()
TENANT = "chat"


class Store(RuleBasedStateMachine):
    """One batch, and what must be true of it by a plain dictionary of results."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.database = Database()
        kept_in = BatchSettings(path=str(Path(self.directory.name) / "a.sqlite3"))
        asyncio.run(self.database.take_over(kept_in, files.remove_uploads))
        self.known: dict[int, tuple[LineOutcome, bytes]] = {}
        self.number, self.id = self.act(self.make)
        self.has_ended = False

    def act(self, act):  # type: ignore[no-untyped-def]
        return asyncio.run(self.database.write(act))

    @staticmethod
    def make(session: Session) -> tuple[int, str]:
        file_id = files.begin_upload(session, NewFile(TENANT, "in"), SETTINGS, 1)
        files.finish_upload(session, TENANT, file_id, None)
        new = NewBatch(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        its_id = batches.create(session, TENANT, new, SETTINGS, 1).id
        (batch,) = batches.open_batches(session)
        assert batches.begin(session, batch.number, [CheckedLine(str(n), n, 1) for n in range(NUM_LINES)], 2)
        return batch.number, its_id

    @rule(number=st.integers(1, NUM_LINES), outcome=st.sampled_from(OUTCOMES), result=st.binary(max_size=20))
    def settle(self, number: int, outcome: LineOutcome, result: bytes) -> None:
        ends = [LineResult(number, outcome, result)]
        ended = self.act(lambda session: lines.settle(session, self.number, ends))
        assert ended == (number not in self.known and not self.has_ended)
        if ended:
            self.known[number] = (outcome, result)

    @precondition(lambda self: not self.has_ended)
    @rule(status=st.sampled_from([BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED]))
    def finish(self, status: BatchStatus) -> None:
        left = self.act(lambda session: batches.finish(session, self.number, status, 5))
        assert left == NUM_LINES - len(self.known)
        assert self.act(lambda session: batches.finish(session, self.number, BatchStatus.COMPLETED, 6)) == 0
        assert self.shown.status is status
        self.has_ended = True

    @property
    def shown(self) -> BatchObject:
        told: BatchObject = self.act(lambda session: batches.find(session, TENANT, self.id))
        return told

    @rule(after=st.integers(0, NUM_LINES), limit=st.integers(1, NUM_LINES))
    def pending_lines_are_those_without_a_result(self, after: int, limit: int) -> None:
        told = self.act(lambda session: lines.pending_lines(session, self.number, after, limit))
        pending = [] if self.has_ended else [n for n in range(after + 1, NUM_LINES + 1) if n not in self.known]
        assert [line.number for line in told] == pending[:limit]

    @invariant()
    def counts_and_files_are_those_of_the_results(self) -> None:
        shown = self.shown
        good = [result for _, (outcome, result) in sorted(self.known.items()) if outcome is LineOutcome.COMPLETED]
        bad = [result for _, (outcome, result) in sorted(self.known.items()) if outcome is not LineOutcome.COMPLETED]
        assert (shown.request_counts.completed, shown.request_counts.failed) == (len(good), len(bad))
        assert (shown.output_file_id is not None) == (self.has_ended and bool(good))
        assert (shown.error_file_id is not None) == (self.has_ended and bool(bad))
        for file_id, results in ((shown.output_file_id, good), (shown.error_file_id, bad)):
            if file_id is not None:
                page = self.act(lambda session, f=file_id: files.read_content(session, TENANT, f, 0))
                file = self.act(lambda session, f=file_id: files.shown(files.find_file(session, TENANT, f)))
                assert page.content == b"".join(results)
                assert file.bytes == len(page.content)

    @precondition(lambda self: self.has_ended)
    @rule()
    def deleting_the_results_leaves_no_lines(self) -> None:
        shown = self.shown
        for file_id in (shown.output_file_id, shown.error_file_id):
            if file_id is not None:
                self.act(lambda session, f=file_id: files.delete_file(session, TENANT, f))
        left = self.act(lambda session: session.scalar(select(func.count()).select_from(LineRow)))
        num_rows = self.act(lambda session: session.scalar(select(func.count()).select_from(BatchRow)))
        assert (left, num_rows) == (0, 1)
        self.teardown()
        self.__init__()  # type: ignore[misc]

    def teardown(self) -> None:
        self.database.close()
        self.directory.cleanup()


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)

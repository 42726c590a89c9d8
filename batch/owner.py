"""The owner of files and batches: what the ingress asks of it, and the runner beside it. Knows no Ray.

One at a time, for one database. Each answer is made in one transaction, so that a process that dies has done all or
nothing of what it was asked.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial

from sqlalchemy.orm import Session

from batch import batches, files, lines
from batch.database import Database
from batch.runner import Runner
from batch.running import LineDesk
from slo.batch import BatchObject, BatchPage, ContentPage, FileDeleted, FileObject, FilePage, Listing, NewBatch, NewFile
from slo.settings import Settings
from slo.snapshots import BatchSnapshot

STUCK_AFTER_S = 120.0
"""A runner that has not looked for so long is stuck: a look takes milliseconds, waiting for the database 30 s."""


class BatchOwner:
    """Files and batches of all tenants. Everything runs on one event loop.

    Every method raises Rejected where the tenant has no such file or batch, StorageFull, and BatchesAway.

    Args:
        database: ours, or to be taken over when its former owner is gone (`Database.take_over`, with `prepare`).
    """

    def __init__(
        self, database: Database, desk: LineDesk, settings: Settings, now_s: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._settings = settings.batch
        self._now_s = now_s
        self._source_id = uuid.uuid4().hex
        self.runner = Runner(database, desk, settings, now_s)
        self.task = asyncio.get_running_loop().create_task(self.runner.run(), name="batches")

    @staticmethod
    def prepare(session: Session) -> None:
        """Removes what the former owner has begun and nobody can go on with."""
        files.remove_uploads(session)

    async def begin_upload(self, new: NewFile) -> str:
        """A file without content yet; its id. Raises Rejected: the tenant holds too much already."""
        act = partial(files.begin_upload, new=new, settings=self._settings, now_s=int(self._now_s()))
        return await self._database.write(act)

    async def append(self, tenant: str, file_id: str, content: bytes) -> None:
        """Its next chunk. Raises Rejected: it becomes too large, or was given up."""
        act = partial(files.append, tenant=tenant, file_id=file_id, content=content, settings=self._settings)
        await self._database.write(act)

    async def finish_upload(self, tenant: str, file_id: str, expires_after_s: int | None) -> FileObject:
        """The file is whole."""
        act = partial(files.finish_upload, tenant=tenant, file_id=file_id, expires_after_s=expires_after_s)
        return await self._database.write(act)

    async def give_up_upload(self, tenant: str, file_id: str) -> None:
        """Forgets what has come of it."""
        await self._database.write(partial(files.give_up_upload, tenant=tenant, file_id=file_id))

    async def file(self, tenant: str, file_id: str) -> FileObject:
        """One file."""
        look = partial(files.find_file, tenant=tenant, file_id=file_id)
        return files.shown(await self._database.read(look))

    async def list_files(self, tenant: str, wanted: Listing, purpose: str | None) -> FilePage:
        """The tenant's files."""
        return await self._database.read(partial(files.list_files, tenant=tenant, wanted=wanted, purpose=purpose))

    async def delete_file(self, tenant: str, file_id: str) -> FileDeleted:
        """Removes it. Raises Rejected: a batch that has not ended reads it."""
        return await self._database.write(partial(files.delete_file, tenant=tenant, file_id=file_id))

    async def content(self, tenant: str, file_id: str, cursor: int) -> ContentPage:
        """Some of its content; `cursor` is 0 at first."""
        return await self._database.read(partial(files.read_content, tenant=tenant, file_id=file_id, cursor=cursor))

    async def create_batch(self, tenant: str, new: NewBatch) -> BatchObject:
        """A batch; its lines are looked at beside. Raises OverQuota: too many have not ended."""
        act = partial(batches.create, tenant=tenant, new=new, settings=self._settings, now_s=int(self._now_s()))
        created = await self._database.write(act)
        self.runner.look()
        return created

    async def batch(self, tenant: str, batch_id: str) -> BatchObject:
        """One batch."""
        return await self._database.read(partial(batches.find, tenant=tenant, batch_id=batch_id))

    async def list_batches(self, tenant: str, wanted: Listing) -> BatchPage:
        """The tenant's batches, the latest first."""
        return await self._database.read(partial(batches.list_batches, tenant=tenant, wanted=wanted))

    async def cancel_batch(self, tenant: str, batch_id: str) -> BatchObject:
        """Cancels it; its lines in flight end soon after. Raises Rejected: it has ended."""
        act = partial(batches.begin_cancel, tenant=tenant, batch_id=batch_id, now_s=int(self._now_s()))
        cancelling = await self._database.write(act)
        self.runner.look()
        return cancelling

    async def snapshot(self) -> BatchSnapshot:
        """What this owner has counted, and what waits."""
        runner = self.runner
        return BatchSnapshot(
            source_id=self._source_id,
            age_s=0.0,
            num_ended=dict(runner.num_ended),
            num_retries=runner.num_retries,
            num_pending=await self._database.read(lines.num_pending) - runner.num_in_flight,
            num_in_flight=runner.num_in_flight,
            num_open=runner.num_open,
        )

    def check(self) -> None:
        """Raises RuntimeError when the runner has ended or is stuck, or the database may be another's by now."""
        if self.task.done():
            raise RuntimeError("the runner of batches has ended")
        if self._database.is_ours.is_set() and (silent_s := self.runner.silent_s()) > STUCK_AFTER_S:
            raise RuntimeError(f"the runner of batches has not looked for {silent_s:.0f} s")
        self._database.check()

    async def close(self) -> None:
        """Gives up what is in flight, to be run again by the next owner, and lets go of the database."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._database.close()

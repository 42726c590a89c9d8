"""The owner of files and batches over a Ray Serve handle: `app.batch_api.Batches`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from app.handle_answers import told_by
from slo.batch import (
    BatchObject,
    BatchPage,
    ContentPage,
    FileDeleted,
    FileObject,
    FilePage,
    Listing,
    NewBatch,
    NewFile,
)
from slo.errors import BatchesAway

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

ANSWER_LIMIT_S: Final = 60.0
"""A call takes milliseconds; one that removes a large file, or comes after the lines of a large batch, some seconds."""
Told = TypeVar("Told")


class ServeBatches:
    """Asks over a handle to the owner's deployment; see `Batches` for what each method tells."""

    def __init__(self, owner: DeploymentHandle[Any]) -> None:
        self._owner = owner

    async def begin_upload(self, new: NewFile) -> str:
        """See `FileTaker`."""
        return await _told(self._owner.begin_upload.remote(new))

    async def append(self, tenant: str, file_id: str, content: bytes) -> None:
        """See `FileTaker`."""
        await _told(self._owner.append.remote(tenant, file_id, content))

    async def finish_upload(self, tenant: str, file_id: str, expires_after_s: int | None) -> FileObject:
        """See `FileTaker`."""
        return await _told(self._owner.finish_upload.remote(tenant, file_id, expires_after_s))

    async def give_up_upload(self, tenant: str, file_id: str) -> None:
        """See `FileTaker`."""
        await _told(self._owner.give_up_upload.remote(tenant, file_id))

    async def file(self, tenant: str, file_id: str) -> FileObject:
        """See `Batches`."""
        return await _told(self._owner.file.remote(tenant, file_id))

    async def list_files(self, tenant: str, wanted: Listing, purpose: str | None) -> FilePage:
        """See `Batches`."""
        return await _told(self._owner.list_files.remote(tenant, wanted, purpose))

    async def delete_file(self, tenant: str, file_id: str) -> FileDeleted:
        """See `Batches`."""
        return await _told(self._owner.delete_file.remote(tenant, file_id))

    async def content(self, tenant: str, file_id: str, cursor: int) -> ContentPage:
        """See `Batches`."""
        return await _told(self._owner.content.remote(tenant, file_id, cursor))

    async def create_batch(self, tenant: str, new: NewBatch) -> BatchObject:
        """See `Batches`."""
        return await _told(self._owner.create_batch.remote(tenant, new))

    async def batch(self, tenant: str, batch_id: str) -> BatchObject:
        """See `Batches`."""
        return await _told(self._owner.batch.remote(tenant, batch_id))

    async def list_batches(self, tenant: str, wanted: Listing) -> BatchPage:
        """See `Batches`."""
        return await _told(self._owner.list_batches.remote(tenant, wanted))

    async def cancel_batch(self, tenant: str, batch_id: str) -> BatchObject:
        """See `Batches`."""
        return await _told(self._owner.cancel_batch.remote(tenant, batch_id))


async def _told(answer: Awaitable[Told]) -> Told:
    return await told_by("the owner of files and batches", answer, ANSWER_LIMIT_S, BatchesAway)

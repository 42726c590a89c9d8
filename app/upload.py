"""A file on its way from a client to the owner of files: in pieces, never whole."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from app.body import num_declared
from app.errors import quoted
from app.form import FormReader, PartBegins, PartContent, PartEnds
from slo.batch import CHUNK_BYTES, MAX_EXPIRY_S, MIN_EXPIRY_S, FileObject, NewFile, file_too_large
from slo.errors import Rejected, ServingError

PURPOSE: Final = "batch"
FORM_BYTES: Final = 64 * 1024
"""What a form may have beside the file: its fields, headers and boundaries."""
MAX_FIELD_BYTES: Final = 1024
MAX_NAME_CHARS: Final = 255
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
UNNAMED: Final = "upload.jsonl"


class FileTaker(Protocol):
    """Takes an upload, piece by piece. Called in the ingress process; each raises a ServingError."""

    async def begin_upload(self, new: NewFile) -> str:
        """The id of a file without content yet."""
        ...

    async def append(self, tenant: str, file_id: str, content: bytes) -> None:
        """Its next `CHUNK_BYTES`, or the rest."""
        ...

    async def finish_upload(self, tenant: str, file_id: str, expires_after_s: int | None) -> FileObject:
        """The file is whole. Before, nobody sees it."""
        ...

    async def give_up_upload(self, tenant: str, file_id: str) -> None:
        """Forgets what has come. Idempotent."""
        ...


def check_length(declared: str | None, max_file_bytes: int) -> None:
    """Raises Rejected: the request's `content-length` tells that the file is too large."""
    if num_declared(declared) > max_file_bytes + FORM_BYTES:
        raise file_too_large(max_file_bytes)


async def take_upload(body: AsyncIterator[bytes], reader: FormReader, tenant: str, taker: FileTaker) -> FileObject:
    """Reads a form with `purpose` and `file`, and has the file kept.

    Raises:
        Rejected: a field is wrong or missing, or the file is too large. Nothing is kept then.
    """
    upload = Upload(tenant, taker)
    try:
        async for data in body:
            for event in reader.feed(data):
                await upload.take(event)
        reader.finish()
        return await upload.finish()
    except BaseException:
        await upload.give_up()
        raise


class Upload:
    """One upload, as its form is read."""

    def __init__(self, tenant: str, taker: FileTaker) -> None:
        self._tenant = tenant
        self._taker = taker
        self._part: PartBegins | None = None
        self._fields: dict[str, bytearray] = {}
        self._file_id: str | None = None
        self._rest = bytearray()

    async def take(self, event: PartBegins | PartContent | PartEnds) -> None:
        """What comes next in the form."""
        match event:
            case PartBegins():
                await self._begin(event)
            case PartContent(content=content) if self._is_file():
                await self._append(content)
            case PartContent(content=content):
                self._add_to_field(content)
            case PartEnds():
                if not self._is_file():
                    self._check_field()
                self._part = None

    async def finish(self) -> FileObject:
        """The form has ended."""
        if "purpose" not in self._fields:
            raise Rejected("purpose is missing", param="purpose")
        if self._file_id is None:
            raise Rejected("file is missing", param="file")
        expires_after_s = self._expires_after_s()
        if self._rest:
            await self._taker.append(self._tenant, self._file_id, bytes(self._rest))
        return await self._taker.finish_upload(self._tenant, self._file_id, expires_after_s)

    async def give_up(self) -> None:
        """Whatever went wrong: nothing of it stays. What cannot be taken back now, the owner forgets by itself."""
        if self._file_id is not None:
            file_id, self._file_id = self._file_id, None
            with contextlib.suppress(ServingError):
                await self._taker.give_up_upload(self._tenant, file_id)

    async def _begin(self, part: PartBegins) -> None:
        self._part = part
        if part.name == "file":
            if self._file_id is not None:
                raise Rejected("file: sent more than once", param="file")
            name = (part.filename or UNNAMED)[:MAX_NAME_CHARS].replace("\x00", "")
            self._file_id = await self._taker.begin_upload(NewFile(self._tenant, name))
        elif part.name not in ("purpose", ANCHOR, SECONDS):
            raise Rejected(f"{quoted(part.name)} is no field of an upload", param=part.name[:MAX_NAME_CHARS])
        elif part.name in self._fields:
            raise Rejected(f"{part.name}: sent more than once", param=part.name)
        else:
            self._fields[part.name] = bytearray()

    def _is_file(self) -> bool:
        return self._part is not None and self._part.name == "file"

    async def _append(self, content: bytes) -> None:
        assert self._file_id is not None
        self._rest += content
        while len(self._rest) >= CHUNK_BYTES:
            piece, self._rest = bytes(self._rest[:CHUNK_BYTES]), self._rest[CHUNK_BYTES:]
            await self._taker.append(self._tenant, self._file_id, piece)

    def _add_to_field(self, content: bytes) -> None:
        assert self._part is not None
        field = self._fields[self._part.name]
        field += content
        if len(field) > MAX_FIELD_BYTES:
            raise Rejected(f"{self._part.name}: larger than {MAX_FIELD_BYTES} bytes", param=self._part.name)

    def _check_field(self) -> None:
        """Told before the file has come, where the field comes first."""
        assert self._part is not None
        name, value = self._part.name, self._field(self._part.name)
        if name == "purpose" and value != PURPOSE:
            raise Rejected(f"purpose: {quoted(value)} is not supported; supported: {PURPOSE}", param="purpose")
        if name == ANCHOR and value != "created_at":
            raise Rejected(f"{ANCHOR}: must be created_at", param=ANCHOR)
        if name == SECONDS and not (
            re.fullmatch(r"[0-9]{1,9}", value or "") and MIN_EXPIRY_S <= int(value or 0) <= MAX_EXPIRY_S
        ):
            raise Rejected(f"{SECONDS}: must be between {MIN_EXPIRY_S} and {MAX_EXPIRY_S}", param=SECONDS)

    def _expires_after_s(self) -> int | None:
        seconds = self._field(SECONDS)
        if (seconds is None) != (ANCHOR not in self._fields):
            missing = SECONDS if seconds is None else ANCHOR
            raise Rejected(f"{missing} is missing", param=missing)
        return None if seconds is None else int(seconds)

    def _field(self, name: str) -> str | None:
        return self._fields[name].decode(errors="replace").strip() if name in self._fields else None

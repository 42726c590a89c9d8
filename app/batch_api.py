"""OpenAI's files and batches over HTTP. Every file and batch belongs to the tenant of the key that made it.

The handlers read requests and hand them to the owner of files and batches, wherever in the cluster that is; nothing is
kept here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from app.body import parse_json_object, read_body
from app.errors import MAX_QUOTED, quoted
from app.form import FormReader
from app.gate.entry import Entry
from app.openapi_batch import BatchDescriptions
from app.upload import FileTaker, check_length, take_upload
from slo.batch import (
    DEFAULT_BATCHES,
    DEFAULT_FILES,
    MAX_BATCHES,
    MAX_FILES,
    BatchObject,
    BatchPage,
    ContentPage,
    FileDeleted,
    FileObject,
    FilePage,
    Listing,
    NewBatch,
)
from slo.errors import Rejected, RejectReason
from slo.settings import Settings

MAX_NEW_BATCH_BYTES: Final = 64 * 1024
"""Of the body that begins a batch: 16 pairs of metadata come to 10 KiB."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Batches(FileTaker, Protocol):
    """The owner of files and batches. Called in the ingress process, on its event loop.

    Every method raises Rejected where the tenant has no such file or batch, StorageFull, and BatchesAway.
    """

    async def file(self, tenant: str, file_id: str) -> FileObject:
        """One file."""
        ...

    async def list_files(self, tenant: str, wanted: Listing, purpose: str | None) -> FilePage:
        """The tenant's files."""
        ...

    async def delete_file(self, tenant: str, file_id: str) -> FileDeleted:
        """Removes it. Raises Rejected: a batch that has not ended reads it."""
        ...

    async def content(self, tenant: str, file_id: str, cursor: int) -> ContentPage:
        """Some of its content; `cursor` is 0 at first."""
        ...

    async def create_batch(self, tenant: str, new: NewBatch) -> BatchObject:
        """A batch. Raises OverQuota: too many have not ended."""
        ...

    async def batch(self, tenant: str, batch_id: str) -> BatchObject:
        """One batch."""
        ...

    async def list_batches(self, tenant: str, wanted: Listing) -> BatchPage:
        """The tenant's batches, the latest first."""
        ...

    async def cancel_batch(self, tenant: str, batch_id: str) -> BatchObject:
        """Cancels it. Raises Rejected: it has ended."""
        ...


class BatchApi:
    """The routes' handlers, over an owner."""

    def __init__(self, batches: Batches, entry: Entry, settings: Settings) -> None:
        self._batches = batches
        self._entry = entry
        self._max_file_bytes = settings.batch.max_file_bytes

    async def upload(self, request: Request) -> Response:
        """POST /v1/files."""
        tenant = self._tenant(request)
        check_length(request.headers.get("content-length"), self._max_file_bytes)
        reader = FormReader(request.headers.get("content-type"))
        try:
            return _json(await take_upload(request.stream(), reader, tenant, self._batches))
        except ClientDisconnect:
            return Response(status_code=499)

    async def list_files(self, request: Request) -> Response:
        """GET /v1/files."""
        tenant, query = self._tenant(request), request.query_params
        if (order := query.get("order", "desc")) not in ("asc", "desc"):
            raise Rejected(f"order: {quoted(order)} is not allowed; allowed: asc, desc", param="order")
        if (purpose := query.get("purpose")) is not None and not _ID.fullmatch(purpose):
            raise Rejected("purpose: no purpose of a file", param="purpose")
        wanted = Listing(_after(request), _limit(request, DEFAULT_FILES, MAX_FILES), newest_first=order == "desc")
        return _json(await self._batches.list_files(tenant, wanted, purpose))

    async def file(self, request: Request) -> Response:
        """GET /v1/files/{file_id}."""
        return _json(await self._batches.file(self._tenant(request), _path_id(request, "file")))

    async def delete_file(self, request: Request) -> Response:
        """DELETE /v1/files/{file_id}."""
        return _json(await self._batches.delete_file(self._tenant(request), _path_id(request, "file")))

    async def content(self, request: Request) -> Response:
        """GET /v1/files/{file_id}/content: the file, page by page. What goes wrong after the first page cuts it off."""
        tenant, file_id = self._tenant(request), _path_id(request, "file")
        file = await self._batches.file(tenant, file_id)
        first = await self._batches.content(tenant, file_id, 0)
        headers = {"content-length": str(file.bytes), "x-content-type-options": "nosniff"}
        pages = self._pages(tenant, file_id, first)
        return StreamingResponse(pages, media_type="application/octet-stream", headers=headers)

    async def create_batch(self, request: Request) -> Response:
        """POST /v1/batches."""
        tenant = self._tenant(request)
        try:
            body = parse_json_object(await read_body(request, MAX_NEW_BATCH_BYTES))
        except ClientDisconnect:
            return Response(status_code=499)
        new = _new_batch(body)
        if not _ID.fullmatch(new.input_file_id):
            raise _no_such("file", "input_file_id")
        return _json(await self._batches.create_batch(tenant, new))

    async def list_batches(self, request: Request) -> Response:
        """GET /v1/batches."""
        tenant = self._tenant(request)
        wanted = Listing(_after(request), _limit(request, DEFAULT_BATCHES, MAX_BATCHES))
        return _json(await self._batches.list_batches(tenant, wanted))

    async def batch(self, request: Request) -> Response:
        """GET /v1/batches/{batch_id}."""
        return _json(await self._batches.batch(self._tenant(request), _path_id(request, "batch")))

    async def cancel_batch(self, request: Request) -> Response:
        """POST /v1/batches/{batch_id}/cancel."""
        return _json(await self._batches.cancel_batch(self._tenant(request), _path_id(request, "batch")))

    def _tenant(self, request: Request) -> str:
        return self._entry.tenant_of(request.headers).name

    async def _pages(self, tenant: str, file_id: str, first: ContentPage) -> AsyncIterator[bytes]:
        yield first.content
        page = first
        while page.next_cursor is not None:
            page = await self._batches.content(tenant, file_id, page.next_cursor)
            yield page.content


def add_batch_routes(app: FastAPI, batches: Batches, entry: Entry, settings: Settings) -> None:
    """Adds the routes to `app`."""
    api, descriptions = BatchApi(batches, entry, settings), BatchDescriptions(settings)
    routes: list[tuple[str, str, Any]] = [
        ("POST", "/v1/files", api.upload),
        ("GET", "/v1/files", api.list_files),
        ("GET", "/v1/files/{file_id}", api.file),
        ("DELETE", "/v1/files/{file_id}", api.delete_file),
        ("GET", "/v1/files/{file_id}/content", api.content),
        ("POST", "/v1/batches", api.create_batch),
        ("GET", "/v1/batches", api.list_batches),
        ("GET", "/v1/batches/{batch_id}", api.batch),
        ("POST", "/v1/batches/{batch_id}/cancel", api.cancel_batch),
    ]
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method], response_model=None, **descriptions.of(method, path))


def _new_batch(body: dict[str, Any]) -> NewBatch:
    try:
        return NewBatch.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    name = ".".join(map(str, fault["loc"]))[:MAX_QUOTED]
    message = "is missing" if fault["type"] == "missing" else fault["msg"]
    raise Rejected(f"{name}: {message}", param=name)


def _path_id(request: Request, what: str) -> str:
    its_id: str = request.path_params[f"{what}_id"]
    if not _ID.fullmatch(its_id):
        raise _no_such(what, f"{what}_id")
    return its_id


def _no_such(what: str, param: str) -> Rejected:
    return Rejected(f"there is no such {what}", param=param, reason=RejectReason.NOT_FOUND)


def _after(request: Request) -> str | None:
    after = request.query_params.get("after")
    if after is not None and not _ID.fullmatch(after):
        raise Rejected("after: no id", param="after")
    return after


def _limit(request: Request, default: int, most: int) -> int:
    text = request.query_params.get("limit", str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise Rejected(f"limit: {quoted(text)} is not allowed; allowed: 1 to {most}", param="limit")
    return int(text)


def _json(told: BaseModel) -> Response:
    return Response(told.model_dump_json(), media_type="application/json")

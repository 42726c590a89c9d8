"""What the OpenAPI document says of the routes for files and batches. See `app.openapi`."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response

from app.openapi import errors_of, json_of, ref, route, security
from app.upload import ANCHOR, SECONDS
from slo.batch import (
    DEFAULT_BATCHES,
    DEFAULT_FILES,
    MAX_BATCHES,
    MAX_EXPIRY_S,
    MAX_FILES,
    MIN_EXPIRY_S,
    BatchObject,
    BatchPage,
    FileDeleted,
    FileObject,
    FilePage,
    NewBatch,
)
from slo.settings import Settings

_ALWAYS: Final = (401, 405, 500, 503)
_UPLOAD: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "purpose": {"type": "string", "enum": ["batch"]},
        "file": {"type": "string", "contentMediaType": "application/octet-stream", "description": "Lines of JSON."},
        ANCHOR: {"type": "string", "enum": ["created_at"]},
        SECONDS: {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S},
    },
}


class OctetResponse(Response):
    """A file as it is."""

    media_type = "application/octet-stream"


class BatchDescriptions:
    """What the document says of each route, by its method and path."""

    def __init__(self, settings: Settings) -> None:
        self._key = security("ApiKey", is_needed=settings.tenants.keys_file is not None)

    def of(self, method: str, path: str) -> dict[str, Any]:
        """The description of the route. Raises KeyError: it has none."""
        describe = {
            ("POST", "/v1/files"): self._upload,
            ("GET", "/v1/files"): self._list_files,
            ("GET", "/v1/files/{file_id}"): self._file,
            ("DELETE", "/v1/files/{file_id}"): self._delete_file,
            ("GET", "/v1/files/{file_id}/content"): self._content,
            ("POST", "/v1/batches"): self._create_batch,
            ("GET", "/v1/batches"): self._list_batches,
            ("GET", "/v1/batches/{batch_id}"): self._batch,
            ("POST", "/v1/batches/{batch_id}/cancel"): self._cancel_batch,
        }[(method, path)]
        return describe()

    def _upload(self) -> dict[str, Any]:
        extra = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}}
        return self._route("upload_file", "Keep a file for batches", FileObject, (400, 413, 507), extra)

    def _list_files(self) -> dict[str, Any]:
        order = {"name": "order", "in": "query", "schema": {"type": "string", "enum": ["asc", "desc"]}}
        purpose = {"name": "purpose", "in": "query", "schema": {"type": "string"}}
        extra = {"parameters": [*_paging(DEFAULT_FILES, MAX_FILES), order, purpose]}
        return self._route("list_files", "Your files, the latest first unless told", FilePage, (400, 404), extra)

    def _file(self) -> dict[str, Any]:
        return self._route("get_file", "One file", FileObject, (404,), _id("file"))

    def _delete_file(self) -> dict[str, Any]:
        errors = (404, 409, 507)
        return self._route("delete_file", "Remove a file; of results, the results", FileDeleted, errors, _id("file"))

    def _content(self) -> dict[str, Any]:
        responses = errors_of((404, *_ALWAYS))
        responses[200] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
        return route(
            "get_file_content", "batches", "A file's content", responses, self._key, _id("file"), as_=OctetResponse
        )

    def _create_batch(self) -> dict[str, Any]:
        extra = {"requestBody": {"required": True, "content": {"application/json": {"schema": ref(NewBatch)}}}}
        errors = (400, 404, 413, 429, 507)
        return self._route("create_batch", "Run a file's lines as P2", BatchObject, errors, extra)

    def _list_batches(self) -> dict[str, Any]:
        extra = {"parameters": _paging(DEFAULT_BATCHES, MAX_BATCHES)}
        return self._route("list_batches", "Your batches, the latest first", BatchPage, (400, 404), extra)

    def _batch(self) -> dict[str, Any]:
        return self._route("get_batch", "One batch", BatchObject, (404,), _id("batch"))

    def _cancel_batch(self) -> dict[str, Any]:
        errors = (400, 404, 507)
        return self._route("cancel_batch", "End a batch; results so far stay", BatchObject, errors, _id("batch"))

    def _route(
        self, name: str, summary: str, told: type[BaseModel], errors: tuple[int, ...], extra: dict[str, Any]
    ) -> dict[str, Any]:
        responses = errors_of((*errors, *_ALWAYS)) | {200: json_of(told)}
        return route(name, "batches", summary, responses, self._key, extra)


def _id(what: str) -> dict[str, Any]:
    return {"parameters": [{"name": f"{what}_id", "in": "path", "required": True, "schema": {"type": "string"}}]}


def _paging(default: int, most: int) -> list[dict[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    after = "The last id of the page before."
    return [
        {"name": "limit", "in": "query", "schema": limit},
        {"name": "after", "in": "query", "description": after, "schema": {"type": "string"}},
    ]

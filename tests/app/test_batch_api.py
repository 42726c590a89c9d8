"""Files and batches over HTTP, on the real owner; nothing runs here (see tests/batch and tests/e2e).

Mutations tried by hand, each found by a test here: an upload that failed kept; a second file taken; a limit of 0; the
length left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.gate.access import Access
from app.gate.entry import Entry
from app.gate.keys import KeyStore, hash_key, new_key
from app.gate.tenant import Tenant
from app.upload import FORM_BYTES
from slo.batch import CHUNK_BYTES
from slo.settings import parse_settings
from tests.app.fake_dispatcher import FakeDispatcher
from tests.app.one_model import api_of_one
from tests.app.owned_batches import OwnedBatches

ONE, TWO = new_key(), new_key()
KEYS = KeyStore([(hash_key(ONE), Tenant("one")), (hash_key(TWO), Tenant("two"))])
MAX_FILE_BYTES = 2 * CHUNK_BYTES
NEW = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[OwnedBatches]:
    limits = {"max_file_bytes": MAX_FILE_BYTES, "max_tenant_bytes": 3 * CHUNK_BYTES}
    owned = OwnedBatches(tmp_path, parse_settings({"batch": limits}))
    yield owned
    owned.close()


@pytest.fixture
async def client(batches: OwnedBatches) -> AsyncIterator[httpx.AsyncClient]:
    settings = parse_settings({"batch": {"max_file_bytes": MAX_FILE_BYTES}})
    app = api_of_one(FakeDispatcher(), settings, entry=Entry(settings, Access(lambda: KEYS)), batches=batches)
    headers = {"authorization": f"Bearer {ONE}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=headers) as http:
        yield http


async def upload(client: httpx.AsyncClient, content: bytes = b"{}\n", **fields: Any) -> httpx.Response:
    data = {"purpose": "batch", **fields}
    return await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data=data)


async def ids(client: httpx.AsyncClient, path: str = "/v1/files", **query: Any) -> list[str]:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


def error(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    told = answer.json()["error"]
    return answer.status_code, told["code"], told["param"]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, MAX_FILE_BYTES])
async def test_file_comes_back_as_it_was_sent(client: httpx.AsyncClient, size: int) -> None:
    content = bytes(n % 251 for n in range(size))
    file = (await upload(client, content)).json()
    assert (file["bytes"], file["object"], file["purpose"], file["status"]) == (size, "file", "batch", "processed")
    assert (await client.get(f"/v1/files/{file['id']}")).json() == file
    answer = await client.get(f"/v1/files/{file['id']}/content")
    assert answer.content == content
    assert answer.headers["content-length"] == str(size)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": "x" * 5000}, "purpose"),
        ({"model": "tiny"}, "model"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"}, "expires_after[seconds]"),
        ({"purpose": ["batch", "batch"]}, "purpose"),
    ],
)
async def test_bad_field_is_named_and_nothing_is_kept(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    assert error(await upload(client, **fields)) == (400, None, param)
    assert await ids(client) == []


async def test_fields_may_come_after_the_file_and_no_file_may_be_missing_or_second(client: httpx.AsyncClient) -> None:
    purpose, file = ("purpose", (None, b"batch")), ("file", ("a", b"x"))
    assert (await client.post("/v1/files", files=[file, purpose])).status_code == 200
    assert error(await client.post("/v1/files", files=[purpose]))[2] == "file"
    assert error(await client.post("/v1/files", files=[file]))[2] == "purpose"
    assert error(await client.post("/v1/files", files=[purpose, file, file]))[2] == "file"
    assert len(await ids(client)) == 1


async def test_file_that_expires_says_when(client: httpx.AsyncClient) -> None:
    file = (await upload(client, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})).json()
    assert file["expires_at"] == file["created_at"] + 3600


async def test_too_large_is_told_before_it_has_come_or_when_it_has(client: httpx.AsyncClient) -> None:
    assert error(await upload(client, b"x" * (MAX_FILE_BYTES + FORM_BYTES + 1))) == (413, "request_too_large", "file")
    assert error(await upload(client, b"x" * (MAX_FILE_BYTES + 1))) == (413, "request_too_large", "file")
    assert await ids(client) == []
    assert (await upload(client, b"x" * MAX_FILE_BYTES)).status_code == 200
    refusal = await upload(client, b"x" * MAX_FILE_BYTES)
    assert error(refusal) == (413, "request_too_large", "file")
    assert "delete some" in refusal.json()["error"]["message"]
    assert len(await ids(client)) == 1
    (file_id,) = await ids(client)
    assert (await client.delete(f"/v1/files/{file_id}")).json() == {"id": file_id, "object": "file", "deleted": True}
    assert (await upload(client, b"x" * MAX_FILE_BYTES)).status_code == 200


async def test_upload_whose_client_leaves_is_forgotten(client: httpx.AsyncClient) -> None:
    begun = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * CHUNK_BYTES
        begun.set()
        await asyncio.Event().wait()

    headers = {"content-type": "multipart/form-data; boundary=b"}
    sending = asyncio.create_task(client.post("/v1/files", content=half(), headers=headers))
    await begun.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await ids(client) == []
    assert (await upload(client, b"x" * MAX_FILE_BYTES)).status_code == 200, "its bytes still count"


async def test_lists_are_paged_in_either_order(client: httpx.AsyncClient) -> None:
    made = [(await upload(client)).json()["id"] for _ in range(3)]
    assert await ids(client) == made[::-1]
    assert await ids(client, order="asc", limit=2) == made[:2]
    assert await ids(client, order="asc", after=made[1]) == [made[2]]
    assert await ids(client, purpose="batch_output") == []
    page = (await client.get("/v1/files", params={"limit": 2})).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"after": "a\0"}, "after"),
        ({"after": "file-none"}, "file_id"),
        ({"order": "up"}, "order"),
        ({"purpose": "a\0"}, "purpose"),
    ],
)
async def test_bad_query_is_named(client: httpx.AsyncClient, query: dict[str, str], param: str) -> None:
    assert error(await client.get("/v1/files", params=query))[2] == param


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input_file_id"),
        ({"input_file_id": "file-none", **NEW}, 404, "file_id"),
        ({"input_file_id": "a\0", **NEW}, 404, "input_file_id"),
        ({"input_file_id": 1, **NEW}, 400, "input_file_id"),
        ({"input_file_id": "x", **NEW, "endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"input_file_id": "x", **NEW, "completion_window": "soon"}, 400, "completion_window"),
        ({"input_file_id": "x", **NEW, "completion_window": "0h"}, 400, "completion_window"),
        ({"input_file_id": "x", **NEW, "completion_window": "8d"}, 400, "completion_window"),
        ({"input_file_id": "x", **NEW, "priority": "P0"}, 400, "priority"),
        ({"input_file_id": "x", **NEW, "metadata": {"a": 1}}, 400, "metadata.a"),
        ({"input_file_id": "x", **NEW, "metadata": {"a" * 65: "b"}}, 400, f"metadata.{'a' * 65}.[key]"),
        ({"input_file_id": "x", **NEW, "metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
        (
            {"input_file_id": "x", **NEW, "output_expires_after": {"anchor": "created_at", "seconds": 1}},
            400,
            "output_expires_after.seconds",
        ),
        ([], 400, None),
    ],
)
async def test_bad_batch_is_told_by_its_field(
    client: httpx.AsyncClient, body: Any, status: int, param: str | None
) -> None:
    answer = await client.post("/v1/batches", content=json.dumps(body))
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert await ids(client, "/v1/batches") == []


async def test_batches_are_begun_and_listed_and_anothers_are_not_there(client: httpx.AsyncClient) -> None:
    file_id = (await upload(client, b"x\n")).json()["id"]
    asked = {"input_file_id": file_id, **NEW, "metadata": {"job": "1"}}
    begun = [(await client.post("/v1/batches", json=asked)).json() for _ in range(2)]
    assert [b["object"] for b in begun] == ["batch"] * 2
    assert begun[0]["expires_at"] == begun[0]["created_at"] + 86_400
    assert await ids(client, "/v1/batches") == [b["id"] for b in begun[::-1]]
    assert await ids(client, "/v1/batches", limit=1, after=begun[1]["id"]) == [begun[0]["id"]]
    two = {"authorization": f"Bearer {TWO}"}
    for method, path in (
        ("GET", f"/v1/files/{file_id}"),
        ("GET", f"/v1/files/{file_id}/content"),
        ("DELETE", f"/v1/files/{file_id}"),
        ("GET", f"/v1/batches/{begun[0]['id']}"),
        ("POST", f"/v1/batches/{begun[0]['id']}/cancel"),
    ):
        assert error(await client.request(method, path, headers=two))[:2] == (404, "not_found"), path
    assert error(await client.post("/v1/batches", json=asked, headers=two))[:2] == (404, "not_found")
    assert (await client.get("/v1/files", headers=two)).json()["data"] == []


async def test_wrong_method_is_told_all_that_the_path_has(client: httpx.AsyncClient) -> None:
    for path, methods in (("/v1/files", "GET, POST"), ("/v1/files/x", "DELETE, GET"), ("/v1/files/x/content", "GET")):
        answer = await client.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


async def test_nobody_without_a_key_gets_anything(client: httpx.AsyncClient) -> None:
    none = {"authorization": ""}
    for method, path in (
        ("POST", "/v1/files"),
        ("GET", "/v1/files/x"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches"),
    ):
        assert (await client.request(method, path, headers=none)).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/files/a.b", "/v1/files/a%00", "/v1/batches/%F0%9F%98%80", "/v1/files/none/content"]
)
async def test_ids_that_are_none_are_not_found(client: httpx.AsyncClient, path: str) -> None:
    assert error(await client.get(path))[:2] == (404, "not_found")

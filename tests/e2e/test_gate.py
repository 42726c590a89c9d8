"""The gate in the deployed application: keys and what they may, overload, waits, and what the logs show of it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.gate.keys import hash_key, new_key
from cli.cluster import free_port
from cli.config import config_for
from tests.e2e.conftest import (
    LIMIT_S,
    MAX_MODEL_LEN,
    MODEL,
    SLOTS,
    Application,
    running_application,
    tiny_engine,
    wait_until,
)
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
MANY = httpx.Limits(max_connections=None)
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
LONG = {"model": MODEL, "prompt": "Long", "max_tokens": MAX_MODEL_LEN - 100, "ignore_eos": True}
QUEUED_P2 = 6
P1_TIMEOUT_S = 1.0
NAMES = ("chat", "web", "strict", "small", "revoked", "operators")
KEYS = {name: new_key() for name in NAMES}
TENANTS: list[dict[str, Any]] = [
    {"name": "chat", "highest_class": "P0"},
    {"name": "web"},
    {"name": "strict", "above_class": "refuse"},
    {"name": "small", "requests_per_minute": 2},
    {"name": "revoked", "disabled": True},
]


def write_keys(path: Path, tenants: list[dict[str, Any]]) -> None:
    """In one move, as an editor or a mounted secret does."""
    entries = [tenant | {"keys_sha256": [hash_key(KEYS[tenant["name"]])]} for tenant in tenants]
    path.with_suffix(".new").write_text(yaml.safe_dump({"tenants": entries}))
    path.with_suffix(".new").replace(path)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(path, TENANTS)
    return path


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory, keys_file: Path) -> Iterator[Application]:
    directory = tmp_path_factory.mktemp("gated")
    arguments = {
        **tiny_engine(make_tiny_model(directory / MODEL)),
        "admission": {"p1": {"queue_timeout_s": P1_TIMEOUT_S}, "p2": {"max_queued": QUEUED_P2}, "ahead_ratio": 0},
        "tenants": {
            "keys_file": str(keys_file),
            "reload_period_s": 0.1,
            "operator_key_sha256": hash_key(KEYS["operators"]),
        },
    }
    with running_application(directory, config_for(arguments, free_port())) as started:
        yield started


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def http(gated: Application) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gated.url, timeout=LIMIT_S) as client:
        yield client


@pytest.mark.parametrize("authorization", [None, "Bearer xl-wrong", "Basic eDp5", f"Bearer {KEYS['revoked']}"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_request_without_a_good_key_is_refused(http: httpx.Client, path: str, authorization: str | None) -> None:
    answer = http.post(path, json=BODY, headers={} if authorization is None else {"Authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_keys_get_the_class_that_they_may_have(http: httpx.Client) -> None:
    urgent = {"X-Priority": "P0"}
    chat, web, strict = (http.post(CHAT, json=BODY, headers=urgent | bearer(n)) for n in ("chat", "web", "strict"))
    assert (chat.status_code, chat.headers["x-priority-class"]) == (200, "P0")
    assert (web.status_code, web.headers["x-priority-class"]) == (200, "P1")
    assert web.headers["x-priority-class-lowered-from"] == "P0"
    assert (strict.status_code, strict.json()["error"]["code"]) == (403, "class_not_allowed")


def test_key_over_its_quota_is_told_when_to_come_again(http: httpx.Client) -> None:
    answers = [http.post(CHAT, json=BODY, headers=bearer("small")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 120
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("path", ["/metrics", "/status", "/v1/status", "/v1/alerts"])
def test_operators_routes_need_the_operators_key(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 401
    assert http.get(path, headers=bearer("chat")).status_code == 401
    assert http.get(path, headers=bearer("operators")).status_code == 200
    assert http.get(path, auth=("anyone", KEYS["operators"])).status_code == 200


def test_keys_change_without_a_restart_and_a_damaged_file_changes_nothing(
    gated: Application, http: httpx.Client, keys_file: Path
) -> None:
    def status(name: str) -> int:
        return http.post(CHAT, json=BODY, headers=bearer(name)).status_code

    swapped = [t | {"disabled": t["name"] == "web"} for t in TENANTS]
    write_keys(keys_file, swapped)
    wait_until(lambda: (status("web"), status("revoked")) == (401, 200), "the changed file is in force")
    keys_file.write_text("tenants: [")
    assert gated.has_logged(r"expresslane.keys .*reason=damaged kept=last_good")
    assert (status("web"), status("revoked"), status("chat")) == (401, 200, 200)
    write_keys(keys_file, TENANTS)
    os.utime(keys_file)
    wait_until(lambda: (status("web"), status("revoked")) == (200, 401), "the good file is in force")


async def hold(client: httpx.AsyncClient, priority: str, request_id: str) -> httpx.Response:
    headers = bearer("chat") | {"X-Priority": priority, "X-Request-Id": request_id}
    return await client.post("/v1/completions", json=LONG, headers=headers)


async def test_overload_sheds_batch_work_with_retry_after_and_serves_urgent_requests(gated: Application) -> None:
    async with httpx.AsyncClient(base_url=gated.url, timeout=LIMIT_S, limits=MANY) as client:
        batch = [asyncio.create_task(hold(client, "P2", f"batch-{i}")) for i in range(SLOTS + QUEUED_P2 + 5)]
        done, _ = await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
        urgent = [await client.post(CHAT, json=BODY, headers=bearer("chat") | {"X-Priority": "P0"}) for _ in range(10)]
        answers = await asyncio.gather(*batch)
    assert {answer.status_code for answer in urgent} == {200}
    assert {task.result().status_code for task in done} == {429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 5
    assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in refused)
    assert all(answer.json()["error"]["code"] == "overloaded" for answer in refused)
    assert [answer.status_code for answer in answers if answer not in refused] == [200] * (SLOTS + QUEUED_P2)


async def test_clients_that_leave_the_queue_make_room_for_others(gated: Application) -> None:
    async with httpx.AsyncClient(base_url=gated.url, timeout=LIMIT_S, limits=MANY) as client:
        for _ in range(3):  # what was left behind would fill the queue by the second time
            batch = [asyncio.create_task(hold(client, "P2", f"leaver-{i}")) for i in range(SLOTS + QUEUED_P2 + 1)]
            (shed,), left = await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
            assert shed.result().status_code == 429
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            await asyncio.sleep(0.5)  # until the application has noticed
        answer = await client.post(CHAT, json=BODY, headers=bearer("chat") | {"X-Priority": "P2"})
    assert answer.status_code == 200


async def test_tenant_gets_a_slot_at_once_when_another_floods_its_class(gated: Application) -> None:
    """The flood fills every slot, half of them with surplus, which yields: a request of another tenant that asks for
    the same class does not wait for the end of one of the flood's."""
    async with httpx.AsyncClient(base_url=gated.url, timeout=LIMIT_S, limits=MANY) as client:
        assert (await client.post(CHAT, json=BODY, headers=bearer("web"))).status_code == 200
        flood = [asyncio.create_task(hold(client, "P1", f"flood-{i}")) for i in range(SLOTS)]
        for i in range(SLOTS):
            assert await asyncio.to_thread(gated.has_logged, rf"request_id=flood-{i} class=P\d replica=")
        counted = re.findall(r"request_id=flood-\d class=(P\d) replica=", gated.log_text())
        assert sorted(counted) == ["P1"] * (SLOTS // 2) + ["P2"] * (SLOTS // 2)
        answer = await client.post(CHAT, json=BODY, headers=bearer("web"))
        assert not any(task.done() for task in flood)
        assert (answer.status_code, answer.headers["x-priority-class"]) == (200, "P1")
        answers = await asyncio.gather(*flood)
    assert [answer.status_code for answer in answers] == [200] * SLOTS
    assert {answer.headers["x-priority-class"] for answer in answers} == {"P1"}
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {LONG["max_tokens"]}


async def test_request_that_expires_in_the_queue_never_reaches_the_engine(gated: Application) -> None:
    async with httpx.AsyncClient(base_url=gated.url, timeout=LIMIT_S, limits=MANY) as client:
        running = [asyncio.create_task(hold(client, "P1", f"running-{i}")) for i in range(4 * SLOTS)]
        answers = await asyncio.gather(*running)
    expired = [answer for answer in answers if answer.status_code == 504]
    assert expired, [answer.status_code for answer in answers]
    assert {answer.json()["error"]["code"] for answer in expired} == {"deadline_exceeded"}
    for answer in expired:
        request_id = answer.headers["x-request-id"]
        assert gated.has_logged(rf"expresslane.gate request_id={request_id} .*reason=expired")
        assert not gated.has_logged(rf"expresslane.replica .*{request_id}\b", limit_s=0)


def test_no_key_is_in_any_log(gated: Application) -> None:
    text = "".join(path.read_text(errors="replace") for path in gated.log_dir.rglob("*") if path.is_file())
    assert "expresslane.keys" in text
    for key in KEYS.values():
        assert key not in text
        assert key.removeprefix("xl-")[:16] not in text

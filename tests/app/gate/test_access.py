"""Mutations that these tests see: lower what may be refused, and refuse what was not asked for; a tenant's own rule
last; an open gate without a word in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.classify import Classification
from app.gate.access import Access, grant_class, open_access
from app.gate.key_file import KeyFileError
from app.gate.keys import KeyStore, hash_key
from app.gate.tenant import ANONYMOUS, Tenant
from slo.errors import Rejected, RejectReason
from slo.priority import PriorityClass
from slo.settings import TenantSettings

P0, P1, P2 = PriorityClass
TENANT = Tenant("a")
KEYED = Access(lambda: KeyStore([(hash_key("key-1"), TENANT)]))


def test_access_finds_the_tenant_by_its_key() -> None:
    assert KEYED.tenant_of("Bearer key-1") is TENANT


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        (None, "no API key was sent"),
        ("Basic key-1", "no API key was sent"),
        ("Bearer ", "no API key was sent"),
        ("Bearer key-2", "the API key is not valid"),
    ],
)
def test_access_refuses_a_missing_or_wrong_key_without_repeating_it(authorization: str | None, message: str) -> None:
    with pytest.raises(Rejected, match=message) as raised:
        KEYED.tenant_of(authorization)
    assert raised.value.reason is RejectReason.INVALID_KEY
    assert "key-" not in raised.value.message


@pytest.mark.parametrize("authorization", [None, "Bearer none", "Basic x"])
def test_access_is_open_when_no_keys_are_configured(authorization: str | None) -> None:
    assert Access(None).tenant_of(authorization) is ANONYMOUS
    assert ANONYMOUS.highest_class is P0


def test_open_access_says_in_the_log_that_everyone_is_served(caplog: pytest.LogCaptureFixture) -> None:
    access = open_access(TenantSettings())
    assert access.tenant_of(None) is ANONYMOUS
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "expresslane.keys")
    assert "reason=open" in record.getMessage()


def test_open_access_reads_the_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    with pytest.raises(KeyFileError, match="cannot be read: FileNotFoundError"):
        open_access(TenantSettings(keys_file=str(path)))
    path.write_text(f'tenants: [{{name: a, keys_sha256: ["{hash_key("key-1")}"]}}]')
    access = open_access(TenantSettings(keys_file=str(path), reload_period_s=3600))
    assert access.tenant_of("Bearer key-1").name == "a"
    with pytest.raises(Rejected):
        access.tenant_of(None)


ASKED = Classification(P0, "header x-priority")


@pytest.mark.parametrize(
    ("decided", "highest", "priority", "lowered_from"),
    [
        (ASKED, P0, P0, None),
        (ASKED, P1, P1, P0),
        (ASKED, P2, P2, P0),
        (Classification(P1, "default"), P2, P2, P1),
        (Classification(P2, "header x-priority"), P0, P2, None),
        (Classification(P1, "default"), P0, P1, None),
    ],
)
def test_class_above_the_highest_is_lowered_and_told(
    decided: Classification, highest: PriorityClass, priority: PriorityClass, lowered_from: PriorityClass | None
) -> None:
    result = grant_class(decided, Tenant("a", highest), "lower")
    assert (result.classification.priority, result.lowered_from) == (priority, lowered_from)
    assert result.classification.reason == decided.reason + (", lowered" if lowered_from else "")


@pytest.mark.parametrize(("reason", "param"), [("header x-priority", "x-priority"), ("service_tier", "service_tier")])
def test_class_above_the_highest_is_refused_when_it_was_asked_for_and_that_is_the_rule(reason: str, param: str) -> None:
    with pytest.raises(Rejected, match="class P0 is above P1, the highest") as raised:
        grant_class(Classification(P0, reason), Tenant("a", P1), "refuse")
    assert (raised.value.reason, raised.value.param) == (RejectReason.CLASS_NOT_ALLOWED, param)


@pytest.mark.parametrize("reason", ["default", "rule 0", "rule 12"])
def test_class_above_the_highest_is_never_refused_when_the_client_did_not_ask_for_it(reason: str) -> None:
    result = grant_class(Classification(P1, reason), Tenant("a", P2), "refuse")
    assert (result.classification.priority, result.lowered_from) == (P2, P1)


def test_tenants_own_rule_goes_before_that_of_the_settings() -> None:
    assert grant_class(ASKED, Tenant("a", P1, "lower"), "refuse").lowered_from is P0
    with pytest.raises(Rejected):
        grant_class(ASKED, Tenant("a", P1, "refuse"), "lower")

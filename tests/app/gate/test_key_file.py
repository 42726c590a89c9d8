"""Mutations that these tests see: take the last of two equal keys; print the value of a wrong hash or an unknown key;
let a disabled tenant in; let two tenants share a key; take an empty file for an open gate."""

from __future__ import annotations

import textwrap

import pytest

from app.gate.key_file import KeyFileError, parse_key_file
from app.gate.keys import hash_key, new_key
from app.gate.tenant import Tenant
from slo.priority import PriorityClass

HASH = hash_key("key-1")
SECRET = new_key()


def yaml(text: str) -> str:
    return textwrap.dedent(text).replace("HASH2", hash_key("key-2")).replace("HASH", HASH).replace("SECRET", SECRET)


def test_key_file_gives_each_tenant_with_what_it_may() -> None:
    store = parse_key_file(
        yaml("""
        tenants:
          - name: chat
            keys_sha256: [HASH]
            highest_class: realtime
            above_class: refuse
            requests_per_minute: 600
            tokens_per_minute: 100000
            weight: 2.5
          - name: nightly
            keys_sha256: [HASH2]
            highest_class: P2
        """)
    )
    assert store.find("key-1") == Tenant("chat", PriorityClass.P0, "refuse", 600, 100_000, 2.5)
    assert store.find("key-2") == Tenant("nightly", PriorityClass.P2)


def test_tenant_without_a_highest_class_may_ask_for_p1_and_not_for_p0() -> None:
    tenant = parse_key_file(yaml("tenants: [{name: a, keys_sha256: [HASH]}]")).find("key-1")
    assert tenant == Tenant("a", PriorityClass.P1, is_alone=True)


def test_tenant_may_have_two_keys_while_they_are_changed() -> None:
    store = parse_key_file(yaml("tenants: [{name: a, keys_sha256: [HASH, HASH2]}]"))
    assert store.find("key-1") == store.find("key-2") != None  # noqa: E711


def test_disabled_tenants_keys_are_nobodys_and_leave_the_other_alone() -> None:
    text = "tenants: [{name: a, keys_sha256: [HASH], disabled: true}, {name: b, keys_sha256: [HASH2]}]"
    store = parse_key_file(yaml(text))
    assert store.find("key-1") is None
    assert store.find("key-2") == Tenant("b", PriorityClass.P1, is_alone=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: tenants: Field required"),
        ("[1]", "line 1: the file: Input should be a valid dictionary or instance of KeyFileContent"),
        ("tenants: []", "line 1: the file: it names no tenant"),
        ("tenants:\n  - name: a", "line 2: tenants.0.keys_sha256: Field required"),
        ("tenants:\n  - name: a\n    keys_sha256: []", "line 3: tenants.0.keys_sha256: Tuple should have at least 1"),
        (
            "tenants:\n  - name: a\n    keys_sha256: [HASHX]",
            "line 3: tenants.0.keys_sha256: each must be 64 hex digits",
        ),
        (
            "tenants:\n  - name: a\n    keys_sha256: [SECRET]",
            "line 3: tenants.0.keys_sha256: each must be 64 hex digits",
        ),
        ("tenants:\n  - name: a\n    key: SECRET", "line 3: tenants.0.key: unknown key"),
        ("tenants:\n  - SECRET: a\n    name: a", "line 2: tenants.0.(not shown): unknown key"),
        ("tenants:\n  - name: SECRET\n    keys_sha256: [HASH]", "line 2: tenants.0.name: must not begin as keys do"),
        ("tenants:\n  - name: a b\n    keys_sha256: [HASH]", "line 2: tenants.0.name: String should match pattern"),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], weight: 0}",
            "line 2: tenants.0.weight=0: Input should be greater",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], weight: 1.0e-300}",
            "line 2: tenants.0.weight=1e-300: Input should be greater than or equal to 0.001",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], weight: .nan}",
            "line 2: tenants.0.weight=nan: Input should be a fini",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], highest_class: P7}",
            "line 2: tenants.0.highest_class: 'P7' is no",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], requests_per_minute: 0}",
            "line 2: tenants.0.requests_per_minute=0:",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH], disabled: perhaps}",
            "line 2: tenants.0.disabled: Input should be a",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH]}\n- {name: a, keys_sha256: [HASH2]}",
            "line 1: the file: a name is given to two tenants: a",
        ),
        (
            "tenants:\n- {name: a, keys_sha256: [HASH]}\n- {name: b, keys_sha256: [HASH]}",
            "line 1: the file: a key's hash is given twice",
        ),
        ("tenants:\n- name: a\n  disabled: true\n  disabled: false", "line 4: no YAML: a key is given twice"),
        ("tenants:\n  - name: a\n   keys_sha256: SECRET", "line 3: no YAML: "),
        ("tenants: {SECRET", "line 1: no YAML: "),
        ("tenants:\n- {name: a, keys_sha256: [2024-13-45]}", "no YAML: something without quotes looks like a date"),
        ("tenants: !!python/object:os.system SECRET", "line 1: no YAML: could not determine a constructor"),
        ("tenants: \x00", "no YAML: it holds a character that is not allowed"),
        ("[" * 5000, "no YAML: "),
    ],
)
def test_key_file_is_refused_with_line_and_key_and_no_secret(text: str, message: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_key_file(yaml(text))
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)
    assert SECRET[3:] not in str(raised.value)


def test_key_file_tells_every_fault_on_a_line_of_its_own() -> None:
    text = "tenants:\n- name: a\n  keys_sha256: [HASH]\n  weight: -1\n  disabled: 7\n"
    with pytest.raises(KeyFileError) as raised:
        parse_key_file(yaml(text))
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["line 4", "line 5"]

import hashlib
import hmac
from typing import Any

import pytest

from app.gate.keys import KEY_PREFIX, KeyStore, bearer_key, hash_key, matches, new_key
from app.gate.tenant import Tenant


def test_new_keys_differ_and_are_safe_in_a_header() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(KEY_PREFIX) and len(key) == len(KEY_PREFIX) + 43 and key.isascii() for key in keys)


def test_hash_is_what_sha256sum_gives() -> None:
    assert hash_key("xl-abc") == hashlib.sha256(b"xl-abc").hexdigest()


def test_matches_compares_with_the_hash() -> None:
    assert matches("xl-abc", hash_key("xl-abc"))
    assert not matches("xl-abd", hash_key("xl-abc"))


@pytest.mark.parametrize(
    ("authorization", "key"),
    [
        ("Bearer xl-abc", "xl-abc"),
        ("bearer  xl-abc ", "xl-abc"),
        ("BEARER xl-abc", "xl-abc"),
        ("Basic eGw6YWJj", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("xl-abc", None),
        ("", None),
        (None, None),
    ],
)
def test_bearer_key_reads_the_authorization_header(authorization: str | None, key: str | None) -> None:
    assert bearer_key(authorization) == key


def test_store_finds_whose_key_it_is() -> None:
    a, b = Tenant("a"), Tenant("b")
    store = KeyStore([(hash_key("key-1"), a), (hash_key("key-2"), a), (hash_key("key-3"), b)])
    assert [store.find(f"key-{n}") for n in (1, 2, 3)] == [a, a, b]
    assert store.tenants == (a, b)
    assert store.find("key-4") is None
    assert store.find("") is None
    assert store.find("schlüssel \u20ac") is None
    assert KeyStore([]).find("key-1") is None


def test_store_compares_every_hash_in_constant_time_wherever_the_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def compare(a: str, b: str) -> bool:
        compared.append(a)
        return a == b

    store = KeyStore([(hash_key(f"key-{n}"), Tenant(f"t{n}")) for n in range(5)])
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in ("key-0", "key-4", "none"):
        compared.clear()
        store.find(key)
        assert len(compared) == 5

"""API keys: made, hashed, and found again by their hash.

A key is 256 random bits, so its plain SHA-256 can be stored: there is nothing to guess. A slow hash (bcrypt, argon2) is
made for passwords that people think up; here it would cost milliseconds a request and protect nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from app.gate.tenant import Tenant

KEY_PREFIX: Final = "xl-"
"""Tells scanners for leaked secrets, and people, what they have found."""
KEY_BYTES: Final = 32


def new_key() -> str:
    """A fresh key: the prefix and 43 characters that are safe in URLs and headers."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: str) -> str:
    """What is stored of `key`: its SHA-256, 64 hex digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def matches(key: str, key_sha256: str) -> bool:
    """Whether `key` has this hash, in constant time."""
    return hmac.compare_digest(hash_key(key), key_sha256)


def bearer_key(authorization: str | None) -> str | None:
    """The key in an `Authorization` header; None where there is none, or it is of another scheme."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def basic_password(authorization: str | None) -> str | None:
    """The password in an `Authorization` header of the basic scheme, whatever the user; None where there is none."""
    scheme, _, encoded = (authorization or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        _, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return None
    return password or None


class KeyStore:
    """The keys of all tenants, by hash. Does not change; a changed file gives a new one."""

    def __init__(self, keys: Iterable[tuple[str, Tenant]]) -> None:
        """Args: keys: hash and tenant. A disabled tenant's keys are left out."""
        self._keys = tuple(keys)

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Those that have a key."""
        return tuple({tenant.name: tenant for _, tenant in self._keys}.values())

    def find(self, key: str) -> Tenant | None:
        """Whose key it is. Looks at every hash, each in constant time, so that the time tells nothing."""
        digest = hash_key(key)
        found = None
        for key_sha256, tenant in self._keys:
            if hmac.compare_digest(key_sha256, digest):
                found = tenant
        return found

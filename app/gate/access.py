"""Who asks, and for which class it may. Errors and logs never hold a key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.classify import Classification
from app.gate.key_file_watch import KeyFileWatch
from app.gate.keys import KeyStore, bearer_key
from app.gate.tenant import ANONYMOUS, AboveClass, Tenant
from slo.errors import Rejected, RejectReason
from slo.priority import PriorityClass
from slo.settings import TenantSettings

LOWERED_FROM_HEADER: Final = "x-priority-class-lowered-from"
logger = logging.getLogger("expresslane.keys")


class Access:
    """Finds the tenant of a request by its key. Where no keys are configured, everyone is `ANONYMOUS`."""

    def __init__(self, keys: Callable[[], KeyStore] | None) -> None:
        """Args: keys: gives the keys as they are now; None: open to all."""
        self._keys = keys

    def tenant_of(self, authorization: str | None) -> Tenant:
        """The tenant whose key is in the `Authorization` header.

        Raises:
            Rejected: there is no key, or it is nobody's, or revoked.
        """
        if self._keys is None:
            return ANONYMOUS
        key = bearer_key(authorization)
        if key is None:
            raise invalid_key("no API key was sent; send it as `Authorization: Bearer KEY`")
        tenant = self._keys().find(key)
        if tenant is None:
            raise invalid_key("the API key is not valid")
        return tenant

    def tenant_named(self, name: str) -> Tenant | None:
        """The tenant of this name, for what was asked with a key of its before; None: it has none now."""
        if self._keys is None:
            return ANONYMOUS if name == ANONYMOUS.name else None
        return next((tenant for tenant in self._keys().tenants if tenant.name == name), None)


def open_access(settings: TenantSettings) -> Access:
    """Access by the settings' file of keys, watched from now on; says in the log when there is none.

    Raises:
        KeyFileError: the file is missing or damaged.
    """
    if settings.keys_file is None:
        logger.warning("tenants.keys_file=None reason=open everyone who reaches the port is served, in any class")
        return Access(None)
    watch = KeyFileWatch(Path(settings.keys_file), settings.reload_period_s)
    watch.start()
    logger.info("path=%r reason=loaded tenants=%d", settings.keys_file, len(watch.store.tenants))
    return Access(lambda: watch.store)


def invalid_key(message: str) -> Rejected:
    """The refusal of a request without a good key."""
    return Rejected(message, param="authorization", reason=RejectReason.INVALID_KEY)


@dataclass(frozen=True, slots=True)
class GrantedClass:
    """The class that a request gets. `lowered_from` is the one it would have had, None where that is the same."""

    classification: Classification
    lowered_from: PriorityClass | None = None


def grant_class(decided: Classification, tenant: Tenant, above_class: AboveClass) -> GrantedClass:
    """The class that was `decided`, or the tenant's highest where that is less urgent.

    A class that the client did not ask for (by default, or by a rule of ours) is lowered, never refused.

    Args:
        above_class: for a tenant that has no rule of its own.

    Raises:
        Rejected: the client asked for a class above its highest, and such are refused.
    """
    highest = tenant.highest_class
    if not decided.priority.outranks(highest):
        return GrantedClass(decided)
    if decided.is_asked_for and (tenant.above_class or above_class) == "refuse":
        raise Rejected(
            f"class {decided.priority.name} is above {highest.name}, the highest that this API key may ask for",
            param=decided.reason.removeprefix("header "),
            reason=RejectReason.CLASS_NOT_ALLOWED,
        )
    return GrantedClass(Classification(highest, f"{decided.reason}, lowered"), decided.priority)

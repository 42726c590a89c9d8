"""What is wrong with settings or a scenario: each fault with its key and, where it may be shown, its value."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from slo.settings.base import SettingsGroup


def tell_faults(error: ValidationError, root: str, *, shows_lists: bool = True) -> str:
    """A line for each fault that pydantic found.

    Args:
        root: what the whole is called, where no key is at fault.
        shows_lists: whether the value of a key that is a list is shown.
    """
    hidden = (SettingsGroup, dict) if shows_lists else (SettingsGroup, dict, list)
    return "\n".join(_tell(fault, root, hidden) for fault in error.errors(include_url=False))


def _tell(fault: Any, root: str, hidden: tuple[type, ...]) -> str:
    key = ".".join(str(part) for part in fault["loc"]) or root
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key (value {fault['input']!r})"
    # The one may be a key, pasted there, and the other hold a password.
    if isinstance(fault["input"], hidden) or key.endswith(("_sha256", "database_url")):
        return f"{key}: {message}"
    return f"{key}={fault['input']!r}: {message}"

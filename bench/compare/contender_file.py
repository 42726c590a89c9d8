"""Contenders from YAML files, and those that come with the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.compare.contender import Contender, ContenderError
from slo.settings.shelf import Shelf

BUILT_IN: Final = Path(__file__).parent / "contenders"
CONTENDERS: Final = Shelf(Contender, BUILT_IN, "contender", "command` or `url", ContenderError, shows_lists=False)
_MERGED: Final = ("files", "environment", "variables", "headers", "body", "priorities")
_OF_ITS_OWN: Final = ("name", "title")


def load_contender(name: str, directory: Path | None = None, variables: dict[str, str] | None = None) -> Contender:
    """The contender in a file, or one of those built in (`fcfs`).

    A file that `extends` another takes over what it does not say; of mappings, key by key.

    Args:
        directory: what a path is relative to; None: the working directory.
        variables: in place of its own.

    Raises:
        ContenderError: it cannot be read, or used.
    """
    path = _located(name, directory)
    values = _whole(path, ())
    if variables is not None:
        values["variables"] = {**_mapping(path, "variables", values), **variables}
    try:
        return CONTENDERS.parse({"name": path.stem, **values})
    except ContenderError as error:
        raise ContenderError(f"{path}: {error}") from None


def _whole(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The values of a file, with those of what it extends where it says nothing."""
    values = CONTENDERS.read(path)
    base_name = values.pop("extends", None)
    if base_name is None:
        return values
    if not isinstance(base_name, str):
        raise ContenderError(f"{path}: extends={base_name!r}: the name or path of another contender is expected")
    base_path = _located(base_name, path.parent)
    if base_path.resolve() in (seen := (*extending, path.resolve())):
        raise ContenderError(f"{path}: extends={base_name!r}: goes round in a circle")
    base = {key: value for key, value in _whole(base_path, seen).items() if key not in _OF_ITS_OWN}
    for key in _MERGED:
        if key in base and key in values:
            values[key] = {**_mapping(base_path, key, base), **_mapping(path, key, values)}
    return {**base, **values}


def _located(name: str, directory: Path | None) -> Path:
    path = CONTENDERS.path_of(name)
    return path if path.is_absolute() or directory is None else directory / path.expanduser()


def _mapping(path: Path, key: str, values: dict[str, Any]) -> dict[str, Any]:
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise ContenderError(f"{path}: {key}={value!r}: a mapping is expected")
    return value

"""docs/settings.md: every setting with its type, default, bounds and meaning, from the models that define them.

The models' JSON schema is what is read, so that nothing is told here that is not told there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from slo.priority import PriorityClass
from slo.settings import Settings

Schema = Mapping[str, Any]
_HEAD: Final = """# Settings

The `args` of an application in a Serve config file such as [serve.yaml](../serve.yaml). What is not set has its
default, also inside a group that is set in part. Unknown keys, values out of bounds and contradictions stop the
deployment, with the key and its value. Written by `expresslane settings` from [slo/settings](../slo/settings).
"""
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "under {}",
    "minLength": "at least {} characters",
    "minItems": "at least {}",
    "minProperties": "at least {}",
    "pattern": "matching `{}`",
}
_CLASSES: Final = ", ".join(f"`{c.name}`" for c in PriorityClass)
_NONE: Final = object()
"""No default: the key is needed."""


def render_settings() -> str:
    """The page, Markdown."""
    schema = Settings.model_json_schema()
    sections = _Page(schema["$defs"]).whole(schema, Settings().model_dump(mode="json"))
    return "\n".join([_HEAD, *sections])


class _Page:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def whole(self, schema: Schema, defaults: Mapping[str, Any]) -> Iterator[str]:
        """The sections of all groups, then those of lists of groups."""
        yield from self.groups([""], schema, [defaults])
        for name, told in schema["properties"].items():
            if (item := self._item_of(told)) is not None:
                yield f"## `{name}`\n\n{told['description']}\n"
                yield from self._section([f"{name}[]"], self._definitions[item], [_NONE])

    def groups(self, paths: list[str], schema: Schema, defaults: list[Any]) -> Iterator[str]:
        """The sections of the groups inside one; those of one kind that stand side by side share theirs."""
        inner = [(name, told) for name, told in schema["properties"].items() if self._group_of(told)]
        for kind, alike in groupby(inner, key=lambda item: self._group_of(item[1])):
            names = [name for name, _ in alike]
            at = [(_join(path, name), given) for path, given in zip(paths, defaults, strict=True) for name in names]
            values = [_within(given, _last(path)) for path, given in at]
            yield from self._section([path for path, _ in at], self._definitions[str(kind)], values)

    def _section(self, paths: list[str], schema: Schema, defaults: list[Any]) -> Iterator[str]:
        is_item_of_whole = "." not in paths[0] and paths[0].endswith("[]")
        level = "#" * (2 + paths[0].count(".") + is_item_of_whole)
        yield f"{level} {', '.join(f'`{path}`' for path in paths)}\n\n{schema.get('description', '')}\n"
        leaves = {name: told for name, told in schema["properties"].items() if not self._group_of(told)}
        if leaves:
            rows = [self._row(name, told, paths, defaults) for name, told in leaves.items()]
            yield "\n".join(["| key | value | default | |", "| --- | --- | --- | --- |", *rows]) + "\n"
        for name, told in leaves.items():
            if (item := self._item_of(told)) is not None:
                yield from self._section([f"{_join(paths[0], name)}[]"], self._definitions[item], [_NONE])
        yield from self.groups(paths, schema, defaults)

    def _row(self, name: str, told: Schema, paths: list[str], defaults: list[Any]) -> str:
        values = [_default(told, _within(given, name)) for given in defaults]
        of_each = (f"{_last(path)}: {value}" for path, value in zip(paths, values, strict=True))
        default = values[0] if len(set(values)) == 1 else "<br>".join(of_each)
        cells = (f"`{name}`", self._kind(told), default, told.get("description", ""))
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    def _group_of(self, told: Schema) -> str | None:
        """The name of the group that a setting is; None: it is a value."""
        name = _ref(told)
        return name if name and self._definitions[name]["type"] == "object" else None

    def _item_of(self, told: Schema) -> str | None:
        """The name of the group that each item of a list, or each value of a mapping, is; None: no group."""
        for inner in (told, *told.get("anyOf", ())):
            for key in ("items", "additionalProperties"):
                if isinstance(inner.get(key), dict) and (name := self._group_of(inner[key])):
                    return name
        return None

    def _kind(self, told: Schema) -> str:
        if "anyOf" in told:
            return " or ".join(self._kind(kind) for kind in told["anyOf"])
        if name := _ref(told):
            return _CLASSES if name == PriorityClass.__name__ else self._kind(self._definitions[name])
        if "const" in told or "enum" in told:
            return ", ".join(f"`{value}`" for value in told.get("enum", [told.get("const")]))
        kind = str(told.get("type", "any"))
        if kind == "array":
            return "list" if self._item_of(told) or "items" not in told else f"list of {self._kind(told['items'])}"
        if kind == "object":
            values = told.get("additionalProperties")
            return f"mapping to {self._kind(values)}" if isinstance(values, dict) and values else "mapping"
        return ", ".join([kind, *(text.format(told[bound]) for bound, text in _BOUNDS.items() if bound in told)])


def _ref(told: Schema) -> str | None:
    return str(told["$ref"]).rsplit("/", 1)[-1] if "$ref" in told else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _within(given: Any, name: str) -> Any:
    return given.get(name, _NONE) if isinstance(given, dict) else _NONE


def _default(told: Schema, given: Any) -> str:
    value = told.get("default", _NONE) if given is _NONE else given
    if value is _NONE:
        return "needed"
    is_class = _ref(told) == PriorityClass.__name__
    return f"`{PriorityClass.from_level(value).name if is_class else json.dumps(value)}`"

"""The file of tenants: YAML in, a `KeyStore` out, or an error that names line and key, and shows no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from app.gate.keys import KEY_PREFIX, KeyStore
from app.gate.tenant import AboveClass, Tenant
from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup
from slo.settings.classification import parse_class
from slo.settings.gate import SHA256_PATTERN

_PLAIN_KEY = re.compile(r"[a-z0-9_]{1,40}")


class KeyFileError(ValueError):
    """The file cannot be used. The message has a line for each fault."""


class TenantEntry(SettingsGroup):
    """One tenant, as the file has it."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="As logs show it; no two are the same.")
    keys_sha256: tuple[str, ...] = Field(
        min_length=1, description="SHA-256 of each of its keys, as `expresslane keys` prints them; two, to change keys."
    )
    highest_class: PriorityClass = Field(PriorityClass.P1, description="The most urgent class it may ask for.")
    above_class: AboveClass | None = Field(
        None,
        description="When it asks for a more urgent one: lower or refuse. Null: tenants.above_class of the settings.",
    )
    requests_per_minute: int | None = Field(None, ge=1, description="Null: no limit.")
    tokens_per_minute: int | None = Field(None, ge=1, description="Tokens by estimate. Null: no limit.")
    weight: float = Field(1, ge=0.001, le=1000, description="Of its share within a class.")
    disabled: bool = Field(False, description="True: its keys are refused.")

    _class = field_validator("highest_class", mode="before")(parse_class)

    @field_validator("name")
    @classmethod
    def _no_key(cls, value: str) -> str:
        if value.startswith(KEY_PREFIX):
            raise ValueError(f"must not begin as keys do, with {KEY_PREFIX}")
        return value

    @field_validator("keys_sha256")
    @classmethod
    def _hashes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.match(SHA256_PATTERN, key) for key in value):
            raise ValueError(
                "each must be 64 hex digits (0-9, a-f), as `expresslane keys` prints it; never the key itself"
            )
        return value


class KeyFileContent(SettingsGroup):
    """The whole file."""

    tenants: tuple[TenantEntry, ...]

    @model_validator(mode="after")
    def _someone_and_each_once(self) -> Self:
        if not self.tenants:
            raise ValueError("it names no tenant; to open the gate, unset tenants.keys_file")
        names = [entry.name for entry in self.tenants]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"a name is given to two tenants: {', '.join(twice)}")
        keys = [key for entry in self.tenants for key in entry.keys_sha256]
        if len(set(keys)) < len(keys):
            raise ValueError("a key's hash is given twice")
        return self


def parse_key_file(text: str) -> KeyStore:
    """The keys in `text`.

    Raises:
        KeyFileError: it is no YAML, or does not hold what it should.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        _refuse_double_keys(root)
        content = KeyFileContent.model_validate(yaml.safe_load(text) or {})
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise KeyFileError(f"{where}no YAML: {error.problem}") from None  # its own text quotes the line
    except (yaml.YAMLError, RecursionError):
        raise KeyFileError("no YAML: it holds a character that is not allowed, or is nested too deeply") from None
    except ValidationError as error:
        raise KeyFileError("\n".join(_describe(e, root) for e in error.errors(include_url=False))) from None
    except ValueError:  # of YAML's reader, which has no mark then
        raise KeyFileError("no YAML: something without quotes looks like a date or a number, and is none") from None
    return KeyStore(_keys(content.tenants))


def _keys(entries: Sequence[TenantEntry]) -> Iterator[tuple[str, Tenant]]:
    enabled = [entry for entry in entries if not entry.disabled]
    for entry in enabled:
        tenant = Tenant(
            name=entry.name,
            highest_class=entry.highest_class,
            above_class=entry.above_class,
            requests_per_minute=entry.requests_per_minute,
            tokens_per_minute=entry.tokens_per_minute,
            weight=entry.weight,
            is_alone=len(enabled) == 1,
        )
        yield from ((key, tenant) for key in entry.keys_sha256)


def _describe(error: Any, root: yaml.Node | None) -> str:
    path = [
        part if isinstance(part, int) or _PLAIN_KEY.fullmatch(str(part)) else "(not shown)" for part in error["loc"]
    ]
    value = error["input"]
    shown = f"={value!r}" if isinstance(value, bool | int | float) else ""
    message = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
    return f"line {_line(root, error['loc'])}: {'.'.join(map(str, path)) or 'the file'}{shown}: {message}"


def _line(node: yaml.Node | None, path: Sequence[object]) -> int:
    """The line of what lies at `path`, or of the last of its holders that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    if not path:
        return line
    if isinstance(node, yaml.SequenceNode) and isinstance(path[0], int) and path[0] < len(node.value):
        return _line(node.value[path[0]], path[1:])
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == path[0]:
                return _line(value, path[1:]) if len(path) > 1 else key.start_mark.line + 1
    return line


def _refuse_double_keys(node: yaml.Node | None) -> None:
    """YAML's reader takes the last of two equal keys in silence: `disabled` twice would be read as one likes."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_double_keys(item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
            _refuse_double_keys(value)

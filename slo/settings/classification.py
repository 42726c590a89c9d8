"""How a request gets its class."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup

PRIORITY_HEADER = "x-priority"
"""Our own header: always read, and before any other."""

RESERVED_HEADERS = frozenset({"priority", "x-vllm-priority"})
"""Never read for a class: browsers send `Priority` (RFC 9218) unasked; `X-Vllm-Priority` is the engine's own."""


def canonical_header(name: str) -> str:
    """`name` as headers are compared: any case, hyphens or underscores."""
    return name.lower().replace("_", "-")


def parse_class(value: object) -> object:
    """A class by name (`P0`, `realtime`), as written in a settings file."""
    parsed = PriorityClass.parse(value) if isinstance(value, str) else value
    if parsed is None or isinstance(parsed, bool):  # YAML reads `on` as true, which would pass for level 1
        raise ValueError(f"{value!r} is no class; allowed: {', '.join(PriorityClass.allowed_names())}")
    return parsed


class ShapeRule(SettingsGroup):
    """Gives `priority` to a request without a class of its own, when every condition that is set holds."""

    priority: PriorityClass = Field(description="The class given.")
    streamed: bool | None = Field(None, description="Holds for streamed (true) or whole (false) answers; null: both.")
    min_max_tokens: int | None = Field(None, gt=0, description="Holds when max_tokens is at least this, tokens.")
    endpoint: str | None = Field(None, pattern="^(chat|completion)$", description="Holds for this endpoint.")

    _class = field_validator("priority", mode="before")(parse_class)

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if self.streamed is None and self.min_max_tokens is None and self.endpoint is None:
            raise ValueError("a rule without a condition would hold for every request: set default_class instead")
        return self


class HeaderMapping(SettingsGroup):
    """A further header that names a class, such as a gateway's objective header."""

    header: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$", description="Name; any case, hyphen or underscore.")
    values: dict[str, PriorityClass] = Field(min_length=1, description="Header value (any case) to class.")

    @field_validator("values", mode="before")
    @classmethod
    def _classes(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        classes = {str(k).strip().lower(): parse_class(v) for k, v in value.items()}
        if len(classes) < len(value):
            raise ValueError(f"a value is given twice, apart from its case: {list(value)}")
        return classes

    @field_validator("header")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if canonical_header(value) in RESERVED_HEADERS:
            raise ValueError(f"header {value!r} must not name a class: clients or engines send it for other ends")
        return value


class ClassificationSettings(SettingsGroup):
    """Order: `X-Priority`, the further headers, the body's `service_tier`, the rules, the default."""

    headers: tuple[HeaderMapping, ...] = Field(
        (), description="Further headers that name a class; the first of them that a request has decides."
    )
    rules: tuple[ShapeRule, ...] = Field(
        (), description="By shape, for requests that name no class; the first rule that holds decides."
    )
    default_class: PriorityClass = Field(
        PriorityClass.P1,
        description="Of a request that names no class and for which no rule holds. Source: own choice.",
    )

    _class = field_validator("default_class", mode="before")(parse_class)

    @field_validator("headers")
    @classmethod
    def _each_header_once(cls, value: tuple[HeaderMapping, ...]) -> tuple[HeaderMapping, ...]:
        seen = {PRIORITY_HEADER}
        for mapping in value:
            name = canonical_header(mapping.header)
            if name in seen:
                raise ValueError(f"header {mapping.header!r} is read already, so these values would never be")
            seen.add(name)
        return value

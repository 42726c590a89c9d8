"""Which class a request has. Pure: headers and body in, a class and its reason out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import quoted
from slo.errors import Rejected
from slo.messages import Endpoint
from slo.priority import PriorityClass
from slo.settings import ClassificationSettings, HeaderMapping, ShapeRule
from slo.settings.classification import PRIORITY_HEADER, canonical_header

SERVICE_TIERS: Mapping[str, PriorityClass] = {
    "priority": PriorityClass.P0,
    "auto": PriorityClass.P1,
    "default": PriorityClass.P1,
    "flex": PriorityClass.P2,
}
"""OpenAI's `service_tier`, as classes."""
_BY_RULE, _BY_DEFAULT = "rule ", "default"
_CLASS_NAMES: Mapping[str, PriorityClass] = {c.name.lower(): c for c in PriorityClass} | {
    c.long_name: c for c in PriorityClass
}


@dataclass(frozen=True, slots=True)
class Classification:
    """A request's class, and what decided it (`header x-priority`, `service_tier`, `rule 0`, `default`)."""

    priority: PriorityClass
    reason: str

    @property
    def is_asked_for(self) -> bool:
        """Whether the client named the class; otherwise a rule or the default of the settings gave it."""
        return self.reason != _BY_DEFAULT and not self.reason.startswith(_BY_RULE)


def classify(
    headers: Iterable[tuple[str, str]],
    body: Mapping[str, Any],
    endpoint: Endpoint,
    settings: ClassificationSettings,
) -> Classification:
    """The class by header, then `service_tier`, then the rules by shape, then the default.

    Args:
        headers: names (any case, hyphens or underscores) and values; a name may come more than once.

    Raises:
        Rejected: a header or `service_tier` holds a value that names no class, or two that differ.
    """
    values = _by_name(headers)
    tier = _from_service_tier(body.get("service_tier"))
    for name, allowed in _class_headers(settings.headers):
        if name in values:
            return Classification(_from_header(name, values[name], allowed), f"header {name}")
    if tier is not None:
        return Classification(tier, "service_tier")
    for index, rule in enumerate(settings.rules):
        if _holds(rule, body, endpoint):
            return Classification(rule.priority, f"{_BY_RULE}{index}")
    return Classification(settings.default_class, _BY_DEFAULT)


def _class_headers(further: Iterable[HeaderMapping]) -> Iterable[tuple[str, Mapping[str, PriorityClass]]]:
    yield PRIORITY_HEADER, _CLASS_NAMES
    for mapping in further:
        yield canonical_header(mapping.header), mapping.values


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(canonical_header(name), []).append(value)
    return values


def _from_header(name: str, values: list[str], allowed: Mapping[str, PriorityClass]) -> PriorityClass:
    classes = []
    for value in values:
        priority = allowed.get(value.strip().lower())
        if priority is None:
            raise Rejected(f"header {name}: {quoted(value)} is not allowed; allowed: {', '.join(allowed)}", param=name)
        classes.append(priority)
    if any(priority is not classes[0] for priority in classes):
        raise Rejected(
            f"header {name}: sent more than once with different classes: {quoted(', '.join(values))}", param=name
        )
    return classes[0]


def _from_service_tier(value: object) -> PriorityClass | None:
    if value is None:
        return None
    tier = SERVICE_TIERS.get(value) if isinstance(value, str) else None
    if tier is None:
        raise Rejected(
            f"service_tier: {quoted(value)} is not allowed; allowed: {', '.join(SERVICE_TIERS)}", param="service_tier"
        )
    return tier


def _holds(rule: ShapeRule, body: Mapping[str, Any], endpoint: Endpoint) -> bool:
    if rule.endpoint is not None and rule.endpoint != endpoint.value:
        return False
    if rule.streamed is not None and rule.streamed is not (body.get("stream") is True):
        return False
    if rule.min_max_tokens is not None:
        asked = body.get("max_completion_tokens")
        asked = body.get("max_tokens") if asked is None else asked
        if not isinstance(asked, int) or asked < rule.min_max_tokens:
            return False
    return True

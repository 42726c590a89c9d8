"""Several models in one application: what each has of its own, on top of the shared settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from slo.settings.base import SettingsGroup


class ModelEntry(SettingsGroup):
    """One of several models. A group holds the keys that differ from those of the same group of the shared settings."""

    model: dict[str, Any] = Field(description="As the group `model` of one model: its source and names.")
    engine: dict[str, Any] = Field({}, description="Its engines.")
    replicas: dict[str, Any] = Field({}, description="Its replicas.")
    routing: dict[str, Any] = Field({}, description="How one of its replicas is chosen.")
    admission: dict[str, Any] = Field({}, description="Its gate.")
    scheduler: dict[str, Any] = Field({}, description="Its scheduler, with its classes' targets.")
    swap: dict[str, Any] = Field({}, description="Its swap.")
    alerts: dict[str, Any] = Field({}, description="Its alerts' thresholds.")
    autoscale: dict[str, Any] = Field({}, description="How its replicas are scaled.")

    def on_top_of(self, shared: Mapping[str, Any], num_models: int) -> dict[str, Any]:
        """The settings of this model alone, as plain values. What guards an ingress process is divided among models."""
        own = self.model_dump()
        values = _merged(shared, own)
        values["ingress"] = _divided(shared["ingress"], "max_ongoing_requests", num_models)
        if "max_held_bytes" not in own["admission"]:
            values["admission"] = _divided(values["admission"], "max_held_bytes", num_models)
        return values


def slug(name: str) -> str:
    """`name` as parts of other names may be spelt: of deployments, of objects in Kubernetes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"


def check_names(names_of_models: Sequence[Iterable[str]]) -> None:
    """Raises ValueError: two models have a name in common, or first names that are spelt alike but for signs."""
    counts = Counter(name for names in names_of_models for name in set(names))
    if twice := sorted(name for name, number in counts.items() if number > 1):
        raise ValueError(f"models: {', '.join(twice)}: a name of two models (model.names, engine.adapters)")
    slugs = Counter(slug(next(iter(names))) for names in names_of_models)
    if twice := sorted(name for name, number in slugs.items() if number > 1):
        raise ValueError(f"models: {', '.join(twice)}: two models' first names differ in signs or case alone")


def check_periods(periods_s: Iterable[float]) -> None:
    """Raises ValueError: they differ. One scrape tells of all models, as often as their rules are evaluated."""
    if len(different := sorted(set(periods_s))) > 1:
        raise ValueError(f"models: autoscale.period_s={' and '.join(f'{p:g}' for p in different)}: set one for all")


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` on top of `shared`, key by key in mappings that both have."""
    merged = dict(shared)
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _divided(group: Mapping[str, Any], key: str, num_models: int) -> dict[str, Any]:
    return {**group, key: max(1, group[key] // num_models)}

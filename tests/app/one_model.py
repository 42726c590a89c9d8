"""The application with one model over a dispatcher, for tests of everything but where models come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from app.api import create_api
from app.dispatch import Dispatcher
from app.gate.access import Access
from app.gate.entry import Entry
from app.metrics import IngressMetrics
from app.model_names import ModelNames
from app.served import ServedModel
from slo.settings import Settings


def api_of_one(
    dispatcher: Dispatcher,
    settings: Settings | None = None,
    names: Sequence[str] = ("tiny",),
    metrics: IngressMetrics | None = None,
    entry: Entry | None = None,
    **options: Any,
) -> FastAPI:
    """`create_api` for a model of these names; what is not given is its own."""
    settings = settings or Settings()
    metrics = metrics or IngressMetrics(settings.scheduler.targets)
    entry = entry or Entry(settings, Access(None))
    model = ServedModel(names[0], ModelNames(names), dispatcher, metrics, entry)
    return create_api([model], settings, **options)

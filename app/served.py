"""The models that one ingress process serves: what each request needs of its own, found by the name it gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.dispatch import Dispatcher
from app.errors import quoted
from app.gate.access import Access
from app.gate.entry import Entry
from app.metrics import IngressMetrics
from app.model_names import ModelNames
from slo.errors import Rejected, RejectReason, ServingError
from slo.settings import Settings

MAX_TOLD: Final = 20
"""Names that an error tells."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model.

    Attributes:
        name: its first name, by which operators know it.
        metrics: what its requests are counted in.
        entry: its gate.
    """

    name: str
    names: ModelNames
    dispatcher: Dispatcher
    metrics: IngressMetrics
    entry: Entry


def serve_model(
    dispatcher: Dispatcher,
    settings: Settings,
    metrics: IngressMetrics | None = None,
    entry: Entry | None = None,
) -> ServedModel:
    """The model of `settings`.

    Args:
        metrics: to be read elsewhere in this process; None: its own.
        entry: followed elsewhere in this process; None: one of its own, open to all.
    """
    list_models = dispatcher.models if settings.engine.adapters_dir is not None else None
    return ServedModel(
        settings.model_names[0],
        ModelNames(settings.model_names, list_models),
        dispatcher,
        metrics or IngressMetrics(settings.scheduler.targets),
        entry or Entry(settings, Access(None)),
    )


class ServedModels:
    """All of them; the first answers who names none."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)
        self._made_s = int(time.time())

    @property
    def first(self) -> ServedModel:
        """The first. What concerns no model, such as a request that cannot be read, counts with it."""
        return self._models[0]

    async def find(self, name: object) -> ServedModel:
        """The model that `name`, a body's `model`, means. Raises Rejected: none that is served."""
        if name is None:
            return self.first
        if not isinstance(name, str):
            raise Rejected("model: must be a string", param="model")
        for model in self._models:
            if model.names.has(name):
                return model
        looks = await asyncio.gather(*(model.names.look(name) for model in self._models))
        for found in (True, None):  # None: its replica decides, which may have to be started by this very request
            if found in looks:
                return self._models[looks.index(found)]
        raise unknown_model(name, [known for model in self._models for known in model.names.known])

    async def find_or_first(self, name: object) -> tuple[ServedModel, Rejected | None]:
        """The model that `name` means; for a name that means none, the one its request is counted with, and why."""
        try:
            return await self.find(name), None
        except Rejected as error:
            return self.first, error

    async def list_models(self) -> list[dict[str, Any]]:
        """OpenAI's model objects, as replicas tell them; of a model whose replicas do not, its known names.

        Raises:
            ReplicaLost: no replica of any model answers.
        """
        asked = [model for model in self._models if model.entry.gate.num_replicas] or self._models
        answers = await asyncio.gather(*(model.dispatcher.models() for model in asked), return_exceptions=True)
        told = dict(zip((model.name for model in asked), answers, strict=True))
        has_answer = any(not isinstance(answer, BaseException) for answer in answers)
        listed: list[dict[str, Any]] = []
        for model in self._models:
            answer = told.get(model.name)
            if isinstance(answer, BaseException) and not (has_answer and isinstance(answer, ServingError)):
                raise answer
            listed += answer if isinstance(answer, list) else map(self._model_object, model.names.known)
        return listed

    def _model_object(self, name: str) -> dict[str, Any]:
        """As vLLM makes it, for a model with no replica to ask: a request starts one."""
        return {"id": name, "object": "model", "created": self._made_s, "owned_by": "vllm"}


def unknown_model(name: str, served: Sequence[str]) -> Rejected:
    """The error for a name that is not served; tells the first of those that are."""
    more = f", and {len(served) - MAX_TOLD} more" if len(served) > MAX_TOLD else ""
    message = f"the model {quoted(name)} does not exist; served: {', '.join(served[:MAX_TOLD])}{more}"
    return Rejected(message, param="model", reason=RejectReason.UNKNOWN_MODEL)

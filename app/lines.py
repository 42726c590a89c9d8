"""Lines of batches in an ingress process: each is treated as a request of its tenant, of class P2.

The other side of `batch.running.LineDesk`. So the gate's limits and fair shares, quotas, survival and the counts of
requests hold for lines as they do for what comes over HTTP.
"""

from __future__ import annotations

import json
import logging
from contextlib import aclosing
from typing import Any, Final

from app.body import parse_json_object
from app.classify import Classification
from app.errors import to_http
from app.generation import Asked, begin
from app.record import RequestRecord
from app.served import ServedModel, ServedModels
from app.stream import document_of
from slo.batch import LineAnswer, LineCall
from slo.errors import OverQuota, Rejected, ServingError
from slo.priority import PriorityClass

ROUTE: Final = "/v1/batches"
"""In the log, where a request has its path."""
NO_KEY_RETRY_S: Final = 60.0
"""Before a line is tried again whose tenant has no key now: keys are changed by hand."""
CLASS: Final = Classification(PriorityClass.P2, "batch")
logger = logging.getLogger("expresslane.ingress")


class Lines:
    """Answers lines. Used on the ingress's event loop."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def answer(self, call: LineCall) -> LineAnswer:
        """What became of the line. Raises nothing but its own cancellation, which stops the engine's work."""
        model = self._models.first
        tenant = model.entry.tenant_named(call.tenant)
        if tenant is None:
            return _refused(OverQuota("the batch's tenant has no API key now", NO_KEY_RETRY_S), model)
        record = RequestRecord(call.request_id, ROUTE, model.metrics)
        record.asked_by(tenant.name)
        try:
            model, body, fault = await self._read(call)
            record.classified(CLASS, model.metrics)
            if fault is not None:
                raise fault
            asked = Asked(call.request_id, call.endpoint, body, len(call.body), CLASS.priority, tenant)
            async with aclosing(await begin(model, asked)) as replies:
                document = document_of(await anext(replies, None))
        except ServingError as error:
            record.close(error)
            return _refused(error, model)
        except Exception as error:  # its sender would try it again and again
            logger.exception("request_id=%s route=%r reason=unexpected", call.request_id, ROUTE)
            record.close(error)
            return _refused(ServingError("an unexpected error; the log has it under this request's id"), model)
        except BaseException as error:
            record.close(error)
            raise
        record.close(None)
        return LineAnswer(200, document, None, model.entry.gate.num_replicas)

    async def _read(self, call: LineCall) -> tuple[ServedModel, dict[str, Any], Rejected | None]:
        """The line's model and body; for one that has none, the model that it is counted with, and why."""
        try:
            body = parse_json_object(call.body)
        except Rejected as error:
            return self._models.first, {}, error
        model, unknown = await self._models.find_or_first(body.get("model"))
        return model, body, unknown


def _refused(error: ServingError, model: ServedModel) -> LineAnswer:
    http = to_http(error)
    return LineAnswer(http.status, json.dumps(http.body), error, model.entry.gate.num_replicas)

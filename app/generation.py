"""A request that has its class and its model, on its way to an engine: the gate is asked, a replica answers.

The same for one that came over HTTP and for a line of a batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from app.body import for_engine
from app.gate.tenant import Tenant
from app.served import ServedModel
from slo.messages import Endpoint, GenerateCall, Reply
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        body: as its client sent it, and `num_bytes` its size.
        priority: the class that it has been granted.
    """

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    num_bytes: int
    priority: PriorityClass
    tenant: Tenant


async def begin(model: ServedModel, asked: Asked) -> AsyncGenerator[Reply, None]:
    """The replies to come; the gate is asked when they are first read.

    Raises:
        Rejected: the tenant never has as much as is asked for.
        OverQuota: the tenant has used its minute.
    """
    call = GenerateCall(asked.endpoint, for_engine(asked.body), asked.priority, asked.request_id)
    ask = await model.entry.ask_for(call, asked.body, asked.num_bytes, asked.tenant)
    return model.entry.admitted(ask, call, model.dispatcher)

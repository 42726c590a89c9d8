"""What a deployment beside the replicas answers over a Ray Serve handle, or the error for one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from slo.errors import ServingError

Told = TypeVar("Told")


async def told_by(
    who: str,
    answer: Awaitable[Told],
    limit_s: float,
    away: Callable[[str], ServingError],
    passed_on: type[ServingError] | tuple[type[ServingError], ...] = ServingError,
) -> Told:
    """The answer, if it comes within `limit_s`.

    Args:
        who: is asked, for the message.
        away: makes the error for one who does not answer.
        passed_on: errors of its own that its caller is told as they are.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise away(f"{who} did not answer in time") from None
    except RayTaskError as error:
        if isinstance(error.cause, passed_on):
            raise error.cause from None
        raise away(f"{who} failed while answering; its log says why") from None
    except (RayError, BackPressureError, DeploymentUnavailableError):
        raise away(f"{who} is not there; Serve starts it again") from None

"""Reads and sets the number of replicas, over Ray Serve's REST API on the dashboard's port.

Owns the address, the token and the retries. Refuses nothing: bounds and reasons are the policy's. Serve refuses a new
target unless the application was deployed with `external_scaler_enabled`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx
import ray
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray.dashboard.utils import ray_address_to_api_server_url
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from autoscale.scaling import ActuatorError, ScalerDisabled
from autoscale.summary import ServedReplicas

DETAILS_PATH = "/api/serve/applications/"
SCALE_PATH = "/api/v1/applications/{application}/deployments/{deployment}/scale"
ATTEMPTS = 3
"""Of one call; the next period tries again anyway."""
FIRST_WAIT_S = 0.1
"""Before the second attempt; doubles with each."""

_STARTING = frozenset({"STARTING", "RECOVERING"})
_RUNNING = frozenset({"RUNNING", "UPDATING", "PENDING_MIGRATION"})
_DRAINING = frozenset({"STOPPING"})


class _Unavailable(ActuatorError):
    """Serve or the dashboard could not answer just now; another attempt may succeed."""


async def dashboard_url() -> str:
    """The dashboard's URL, as Ray's own command line finds it: from the cluster this process belongs to."""
    url: str = await asyncio.to_thread(ray_address_to_api_server_url, ray.get_runtime_context().gcs_address)
    return url


def ray_auth_headers() -> Mapping[str, str]:
    """The header with Ray's token, from where Ray's own clients read it; nothing when the cluster asks for none."""
    headers: Mapping[str, str] = get_auth_headers_if_auth_enabled({})
    return headers


class ServeActuator:
    """The replicas of one deployment. Called by the control loop, on its event loop.

    Args:
        client: its time-out bounds each attempt.
        find_url: gives the dashboard's URL; asked again after a failure, as the head may have moved.
        sleep: between attempts.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        application: str,
        deployment: str,
        *,
        find_url: Callable[[], Awaitable[str]] = dashboard_url,
        auth_headers: Callable[[], Mapping[str, str]] = ray_auth_headers,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._application = application
        self._deployment = deployment
        self._find_url = find_url
        self._auth_headers = auth_headers
        self._sleep = sleep
        self._url: str | None = None

    async def read(self) -> ServedReplicas:
        """The replicas by state.

        Raises:
            ActuatorError: Serve could not be asked, or does not know the deployment.
        """
        details = (await self._call("GET", DETAILS_PATH)).json()
        try:
            return _served(details["applications"][self._application]["deployments"][self._deployment])
        except KeyError as error:
            raise ActuatorError(f"Serve's details have no {error}") from None

    async def set_target(self, target: int) -> None:
        """Sets the number of replicas that Serve keeps. Idempotent.

        Raises:
            ScalerDisabled: the application was deployed without `external_scaler_enabled`.
            ActuatorError: it was not set for another reason.
        """
        path = SCALE_PATH.format(application=self._application, deployment=self._deployment)
        await self._call("POST", path, {"target_num_replicas": target})

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        attempts = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=FIRST_WAIT_S),
            retry=retry_if_exception_type(_Unavailable),
            sleep=self._sleep,
            reraise=True,
        )
        response: httpx.Response = await attempts(self._attempt, method, path, body)
        return response

    async def _attempt(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        if self._url is None:
            self._url = await self._find_url()
        try:
            response = await self._client.request(
                method, self._url + path, json=body, headers=dict(self._auth_headers())
            )
        except httpx.TransportError as error:
            self._url = None
            raise _Unavailable(f"the dashboard cannot be reached: {type(error).__name__}: {error}") from None
        return _checked(response)


def _checked(response: httpx.Response) -> httpx.Response:
    status, said = response.status_code, response.text[:200]
    if response.is_success:
        return response
    if status == HTTPStatus.PRECONDITION_FAILED and "external_scaler_enabled" in response.text:
        raise ScalerDisabled("the application was deployed without `external_scaler_enabled: true`: redeploy it so")
    if response.is_server_error:
        raise _Unavailable(f"Serve answered {status}: {said}")
    raise ActuatorError(f"Serve answered {status}: {said}")


def _served(deployment: Mapping[str, Any]) -> ServedReplicas:
    states = [replica["state"] for replica in deployment["replicas"]]
    return ServedReplicas(
        target=deployment["target_num_replicas"],
        running=sum(s in _RUNNING for s in states),
        starting=sum(s in _STARTING for s in states),
        draining=sum(s in _DRAINING for s in states),
    )

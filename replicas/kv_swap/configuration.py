"""How KV swap is asked for: vLLM's `kv_transfer_config`. Imports no vLLM, as it is made before the engine's environment
is."""

from __future__ import annotations

from typing import Any, Final

from slo.settings.swap import SwapSettings

CONNECTOR: Final = "SwapConnector"
CONNECTOR_MODULE: Final = "replicas.kv_swap.connector"


def transfer_config(settings: SwapSettings) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` for swap with `settings`, whose `host_bytes` is set. Plain JSON values.

    Producer, not both: as a consumer vLLM would hold every freed block back until the steps in flight are done, and
    running decodes then miss steps. The connector orders its own copies. A load that fails is computed again, not an
    error to the client.
    """
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings.as_plain(),
    }

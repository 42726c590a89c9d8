"""Where KV swap is right, and where it stands aside: reads vLLM's configuration, changes nothing.

An engine that swap does not suit runs as if it were off, victims are computed again. An engine that was configured for
something that cannot be meant is refused at start-up.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MLAAttentionSpec

from replicas.kv_swap.configuration import CONNECTOR
from replicas.kv_swap.regions import UnsupportedLayoutError, find_regions

_WHOLE_CONTEXT = (FullAttentionSpec, MLAAttentionSpec)
"""Layers that keep the KV of every token, in blocks in order."""


def check_transfer_config(vllm_config: VllmConfig) -> None:
    """Raise ValueError where the connector would do harm: another role, failures that end requests, other
    connectors."""
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    if transfer.kv_connector != CONNECTOR:
        raise ValueError(
            f"{CONNECTOR} must be vLLM's only KV connector, got it inside {transfer.kv_connector}: set swap.host_bytes "
            "to 0 to use the others"
        )
    if transfer.kv_role != "kv_producer" or transfer.kv_load_failure_policy != "recompute":
        raise ValueError(
            f"{CONNECTOR} needs kv_role 'kv_producer' and kv_load_failure_policy 'recompute', got "
            f"{transfer.kv_role!r} and {transfer.kv_load_failure_policy!r}"
        )


def why_unsupported(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str | None:
    """Why swap stands aside in this engine; None where it works.

    One group of full-attention layers has one block table, in which tokens lie in order. Sliding windows, Mamba states,
    a drafter's layers, an encoder's output and pipeline stages have more to bring back than such a table says. With
    context parallelism a block holds more tokens than its size. Prefix caching, LoRA, structured output, tensor
    parallelism, asynchronous scheduling and both model runners are no hindrance.
    """
    groups, parallel = kv_cache_config.kv_cache_groups, vllm_config.parallel_config
    reasons = {
        "more than one group of KV cache layers": len(groups) != 1,
        "layers other than full attention": any(type(g.kv_cache_spec) not in _WHOLE_CONTEXT for g in groups),
        "speculative decoding": vllm_config.speculative_config is not None,
        "an encoder-decoder model": vllm_config.model_config.is_encoder_decoder,
        "a pooling model": vllm_config.model_config.runner_type != "generate",
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1,
        "an encoder cache connector": vllm_config.ec_transfer_config is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            return reason
    try:
        find_regions(kv_cache_config)
    except UnsupportedLayoutError as error:
        return str(error)
    return None

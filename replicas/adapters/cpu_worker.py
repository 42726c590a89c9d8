"""Requests without an adapter beside some with one, on vLLM's CPU backend.

There vLLM 0.32 marks a token without an adapter by index -1, and then reads the weights at that index: those of the
last place. Such a request is answered as if it had named whichever adapter lies there (vLLM's pull requests 48421 and
49656). Its kernels on GPUs pass such tokens over, and so do these. A test tells when vLLM does it itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

_OPS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


class CpuAdapters:
    """What vLLM adds to its worker class: `replicas.engine` names it, `replicas.openai` calls it."""

    def pass_base_tokens_over(self) -> None:
        """Called in each worker once, before its first request. Idempotent."""
        for module in (lora_ops, punica_cpu):
            for name in _OPS:
                op = getattr(module, name)
                setattr(module, name, op if hasattr(op, "__wrapped__") else passing_over(op))


def passing_over(op: Callable[..., None]) -> Callable[..., None]:
    """`op`, one of vLLM's, for the rows that have an adapter; the others' output stays as it is."""

    @wraps(op)
    def on_rows_with_adapter(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        indices: torch.Tensor,
        *rest: Any,
        **more: Any,
    ) -> None:
        has_adapter = indices >= 0
        if bool(has_adapter.all()):
            op(inputs, weights, output, indices, *rest, **more)
        elif bool(has_adapter.any()):
            rows = output[has_adapter]
            op(inputs[has_adapter], weights, rows, indices[has_adapter], *rest, **more)
            output[has_adapter] = rows

    return on_rows_with_adapter

"""What a step costs on a GPU: a roofline of its products, the reading of weights and KV, and fixed overheads. Pure.

Linear layers and attention follow each other, so their times add up. Linear layers take the longer of computing and
reading the weights. A decode's attention reads its KV; a prefill's attention computes. Each GPU of a tensor-parallel
group does its share of all that, and two sums over the group in each layer come on top.
"""

from __future__ import annotations

from pydantic import Field

from sim.hardware import Gpu
from sim.model_shape import BYTES_PER_VALUE, ModelShape
from sim.step_work import StepWork
from slo.settings.base import SettingsGroup


class Efficiency(SettingsGroup):
    """What is reached of a data sheet's figures, and what it does not tell.

    The defaults are assumptions, measured on no GPU by us; `expresslane calibrate` replaces them by what was measured.
    With them an 8B model on an H100 decodes one stream at 7 ms a token, and reads 30,000 prompt tokens a second. What
    others measured, as far as it was found, is in docs/simulate.md.
    """

    compute_ratio: float = Field(0.45, gt=0, le=1, description="Of peak products a second, in linear layers.")
    attention_ratio: float = Field(0.35, gt=0, le=1, description="Of peak products a second, in a prefill's attention.")
    read_ratio: float = Field(0.80, gt=0, le=1, description="Of peak memory bandwidth, for weights and KV.")
    host_ratio: float = Field(0.80, gt=0, le=1, description="Of the peak of the link to the host, for KV that moves.")
    link_ratio: float = Field(0.60, gt=0, le=1, description="Of the peak of the link between GPUs.")
    step_ms: float = Field(1.0, ge=0, description="Each step: launches, sampling, gaps between kernels, milliseconds.")
    sequence_ms: float = Field(0.008, ge=0, description="Each request in a step, milliseconds.")
    schedule_ms: float = Field(
        1.0, ge=0, description="Each step, where it is not scheduled beside the one before it, milliseconds."
    )
    all_reduce_ms: float = Field(0.015, ge=0, description="A sum over GPUs, beside its bytes, milliseconds.")


class Roofline:
    """The time of steps of `model` on `num_gpus` of `gpu`. `is_async`: scheduling is hidden behind the step before."""

    def __init__(
        self,
        gpu: Gpu,
        model: ModelShape,
        num_gpus: int = 1,
        efficiency: Efficiency | None = None,
        is_async: bool = True,
    ) -> None:
        self._efficiency = has = efficiency or Efficiency()
        self._model = model
        self._num_gpus = num_gpus
        self._flops = gpu.flops_per_s * has.compute_ratio * num_gpus
        self._attention_flops = gpu.flops_per_s * has.attention_ratio * num_gpus
        self._reads = gpu.bytes_per_s * has.read_ratio * num_gpus
        self._link = has.link_ratio * (gpu.link_bytes_per_s or gpu.host_bytes_per_s)
        self._fixed_s = 1e-3 * (has.step_ms + (0.0 if is_async else has.schedule_ms))
        self._weights_s = BYTES_PER_VALUE * (model.layer_weights + model.head_weights) / self._reads

    def step_s(self, work: StepWork) -> float:
        """See `StepTime`."""
        num_tokens = work.prefill_tokens + work.num_decodes
        if not num_tokens:
            return self._fixed_s
        model, num_sequences = self._model, work.num_decodes + work.num_prefills
        flops = 2 * (model.layer_weights * num_tokens + model.head_weights * work.num_sampled)
        attention_flops = 4 * model.num_layers * model.num_heads * model.head_dim * work.prefill_pairs
        return (
            self._fixed_s
            + 1e-3 * self._efficiency.sequence_ms * num_sequences
            + max(flops / self._flops, self._weights_s)
            + attention_flops / self._attention_flops
            + work.decode_context * self.context_slope_s()
            + self._sums_s(num_tokens)
        )

    def context_slope_s(self) -> float:
        """See `StepTime`."""
        return self._model.kv_bytes_per_token / self._reads

    def _sums_s(self, num_tokens: int) -> float:
        if self._num_gpus == 1:
            return 0.0
        num_bytes = num_tokens * self._model.hidden * BYTES_PER_VALUE * 2 * (self._num_gpus - 1) / self._num_gpus
        return 2 * self._model.num_layers * (1e-3 * self._efficiency.all_reduce_ms + num_bytes / self._link)

"""Models by name: the sizes that decide what a step computes and reads, of their published config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BYTES_PER_VALUE: Final = 2
"""Weights and KV in BF16."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder with gated feed-forward layers and grouped-query attention."""

    name: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary: int
    ties_embeddings: bool
    max_model_len: int
    source: str

    @property
    def layer_weights(self) -> int:
        """Weights that every token is multiplied with, in all layers."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Weights that turn a last hidden state into a token."""
        return self.hidden * self.vocabulary

    @property
    def memory_bytes(self) -> int:
        """Of all weights, embeddings included."""
        heads = 1 if self.ties_embeddings else 2
        return BYTES_PER_VALUE * (self.layer_weights + heads * self.head_weights)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * BYTES_PER_VALUE * self.num_layers * self.num_kv_heads * self.head_dim


MODELS: Final[Mapping[str, ModelShape]] = {
    shape.name: shape
    for shape in (
        ModelShape(
            "llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, False, 131072, "meta-llama/Llama-3.1-8B-Instruct"
        ),
        ModelShape(
            "llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, 128256, False, 131072, "meta-llama/Llama-3.1-70B-Instruct"
        ),
        ModelShape("qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, False, 32768, "Qwen/Qwen2.5-7B-Instruct"),
        ModelShape("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, True, 8192, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    )
}

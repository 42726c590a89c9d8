"""A LoRA adapter with random weights for the tiny model, in PEFT's layout. It answers in another way than the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.tiny_model import HEAD_DIM, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS

RANK = 4
_SIZES = {
    "self_attn.q_proj": (HIDDEN_SIZE, NUM_HEADS * HEAD_DIM),
    "self_attn.v_proj": (HIDDEN_SIZE, NUM_KV_HEADS * HEAD_DIM),
    "self_attn.o_proj": (NUM_HEADS * HEAD_DIM, HIDDEN_SIZE),
    "mlp.down_proj": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
}


def make_tiny_adapter(directory: Path, seed: int = 1, rank: int = RANK, **config: Any) -> Path:
    """Fill `directory` (made if absent) and return it. The same seed gives the same bytes; `config` replaces fields."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(NUM_LAYERS):
        for name, (num_in, num_out) in _SIZES.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, num_in, generator=generator) / num_in**0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(num_out, rank, generator=generator) / rank**0.5
    save_file(weights, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rsplit(".", 1)[1] for name in _SIZES}),
        "bias": "none",
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(values))
    return directory

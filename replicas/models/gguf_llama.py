"""A Llama model in a GGUF file, written out as a Hugging Face directory that vLLM and transformers load.

Owns the two layouts and what differs between them: tensor names, quantization, the order of the rotary rows, the
tokenizer. Refuses every architecture but Llama and every tensor it has no name for. Imports torch and transformers:
import it only to convert.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class UnsupportedGguf(ValueError):
    """The file is no GGUF, is damaged, or holds something other than the Llama models this module knows."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What the GGUF header says of the model. Token ids are None where the header names none."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    intermediate_size: int
    max_tokens: int
    norm_eps: float
    rope_theta: float
    bos_token_id: int | None
    eos_token_id: int
    pad_token_id: int | None


def convert_gguf_llama(
    gguf_file: Path,
    directory: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    split_digits: bool,
    progress: Callable[[str], None],
) -> None:
    """Fill the existing `directory` with config, generation config, weights (as `dtype`), tokenizer and chat template.

    `split_digits` puts the tokenizer's digit splitter back, which GGUF names (tokenizer.ggml.pre) and transformers does
    not restore. Raises UnsupportedGguf for a file it cannot read, OSError for a directory it cannot write.
    """
    try:
        reader = GGUFReader(gguf_file)
        shape = read_shape(reader)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError) as error:
        raise UnsupportedGguf(f"{gguf_file} cannot be read as a GGUF Llama model: {error}") from error
    names = hugging_face_names(shape.num_layers, is_tied="output.weight" not in tensors)
    if names.keys() != tensors.keys():
        odd = sorted(names.keys() ^ tensors.keys())
        raise UnsupportedGguf(f"{gguf_file} has tensors missing or beside those of a Llama: {odd}")

    progress("reading the tokenizer and the chat template")
    _write_tokenizer(gguf_file, directory, shape, split_digits)
    progress(f"dequantizing {len(tensors)} tensors")
    weights = {hf_name: _weight(tensors[name], shape).to(dtype) for name, hf_name in names.items()}
    vocab_size = weights["model.embed_tokens.weight"].shape[0]
    _write_configs(directory, shape, vocab_size, is_tied="output.weight" not in tensors, dtype=dtype)
    num_bytes = sum(weight.nbytes for weight in weights.values())
    progress(f"writing {num_bytes / 1e6:.0f} MB of weights")
    _write_weights(directory / "model.safetensors", weights, mode=(directory / "config.json").stat().st_mode)


def read_shape(reader: GGUFReader) -> LlamaShape:
    """The model's shape from the header. ValueError, naming the key, for a missing one or another architecture."""

    def optional(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    def required(key: str) -> Any:
        value = optional(key)
        if value is None:
            raise ValueError(f"no {key} in the header")
        return value

    if (architecture := required("general.architecture")) != "llama":
        raise ValueError(f"general.architecture is {architecture!r}, not 'llama'")
    return LlamaShape(
        num_layers=required("llama.block_count"),
        num_heads=required("llama.attention.head_count"),
        num_kv_heads=required("llama.attention.head_count_kv"),
        hidden_size=required("llama.embedding_length"),
        intermediate_size=required("llama.feed_forward_length"),
        max_tokens=required("llama.context_length"),
        # The header holds a float32: 1e-05 reads as 9.999999747378752e-06.
        norm_eps=float(f"{required('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_theta=required("llama.rope.freq_base"),
        bos_token_id=optional("tokenizer.ggml.bos_token_id"),
        eos_token_id=required("tokenizer.ggml.eos_token_id"),
        pad_token_id=optional("tokenizer.ggml.padding_token_id"),
    )


def hugging_face_names(num_layers: int, *, is_tied: bool) -> dict[str, str]:
    """The name of each tensor in GGUF -> its name in a Hugging Face Llama. Tied: the embedding is the output too."""
    names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in OUTER_TENSORS.items()}
    if is_tied:
        del names["output.weight"]
    for layer in range(num_layers):
        for ours, theirs in LAYER_TENSORS.items():
            names[f"blk.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"
    return names


def undo_rotary_permutation(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """The q or k projection (num_heads * head_dim, hidden) with its rows back in Hugging Face's order.

    llama.cpp rotates neighbours (2i, 2i + 1), Hugging Face rotates halves (i, i + head_dim / 2), so the conversion to
    GGUF interleaves the two halves of each head. Here they are drawn apart again.
    """
    num_rows, hidden = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(num_rows, hidden)


def _weight(tensor: ReaderTensor, shape: LlamaShape) -> torch.Tensor:
    values = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith(".attn_q.weight"):
        values = undo_rotary_permutation(values, shape.num_heads)
    elif tensor.name.endswith(".attn_k.weight"):
        values = undo_rotary_permutation(values, shape.num_kv_heads)
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _write_tokenizer(gguf_file: Path, directory: Path, shape: LlamaShape, split_digits: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, local_files_only=True)
    backend = tokenizer.backend_tokenizer
    if split_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    special = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_tokens,
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in special.items() if token is not None},
        "chat_template": tokenizer.chat_template,
    }
    # Not save_pretrained: it raises a bare Exception when the disk is full.
    (directory / "tokenizer.json").write_text(backend.to_str(pretty=True), encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", settings)


def _write_configs(directory: Path, shape: LlamaShape, vocab_size: int, *, is_tied: bool, dtype: torch.dtype) -> None:
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_tokens,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=is_tied,
        dtype=dtype,
        bos_token_id=shape.bos_token_id,
        eos_token_id=shape.eos_token_id,
        pad_token_id=shape.pad_token_id,
    )
    token_ids = {name: getattr(shape, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(directory / "config.json", config.to_diff_dict())
    _write_json(directory / "generation_config.json", {name: i for name, i in token_ids.items() if i is not None})


def _write_weights(path: Path, weights: dict[str, torch.Tensor], mode: int) -> None:
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    # save_file lets only the owner read; the umask decides, as for the other files.
    path.chmod(mode)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

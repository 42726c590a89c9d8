import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoTokenizer

from replicas.models.gguf_llama import (
    UnsupportedGguf,
    convert_gguf_llama,
    hugging_face_names,
    undo_rotary_permutation,
)
from tests import tiny_model
from tests.tiny_model import make_tiny_model


def interleave_halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """What llama.cpp's conversion does to the q and k rows, said row by row."""
    head_dim = len(rows) // num_heads
    order = [
        head * head_dim + half * head_dim // 2 + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in (0, 1)
    ]
    return rows[order]


def write_gguf(path: Path, model: Path, *, is_tied: bool = False, architecture: str = "llama") -> Path:
    """The tiny model in `model` as llama.cpp would store it, in float32."""
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get))
    num_special = len(tiny_model.SPECIAL_TOKENS)
    writer.add_token_types([3] * num_special + [1] * (config["vocab_size"] - num_special))
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template(tiny_model.CHAT_TEMPLATE)
    weights = load_file(model / "model.safetensors")
    for name, theirs in hugging_face_names(config["num_hidden_layers"], is_tied=is_tied).items():
        values = weights[theirs].numpy()
        if "attn_q" in name:
            values = interleave_halves(values, config["num_attention_heads"])
        elif "attn_k" in name:
            values = interleave_halves(values, config["num_key_value_heads"])
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def square_headed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model whose heads fill the hidden size, as in every Llama of the GGUF kind we read."""
    monkeypatch.setattr(tiny_model, "HEAD_DIM", tiny_model.HIDDEN_SIZE // tiny_model.NUM_HEADS)
    return make_tiny_model(tmp_path / "model")


def convert(
    gguf_file: Path, directory: Path, dtype: torch.dtype = torch.float32, *, split_digits: bool = False
) -> Path:
    directory.mkdir()
    convert_gguf_llama(gguf_file, directory, dtype=dtype, split_digits=split_digits, progress=lambda _: None)
    return directory


def test_undo_rotary_permutation_draws_the_halves_of_each_head_apart() -> None:
    # Two heads of four rows; llama.cpp stores the rows 0 1 2 3 of a head as 0 2 1 3.
    stored = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], dtype=np.float32)
    assert undo_rotary_permutation(stored, num_heads=2).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("num_heads", "head_dim", "hidden"), [(1, 2, 3), (2, 4, 5), (3, 64, 8), (9, 6, 1)])
def test_undo_rotary_permutation_inverts_the_conversion_to_gguf(num_heads: int, head_dim: int, hidden: int) -> None:
    rows = np.arange(num_heads * head_dim * hidden, dtype=np.float32).reshape(-1, hidden)
    np.testing.assert_array_equal(undo_rotary_permutation(interleave_halves(rows, num_heads), num_heads), rows)


@pytest.mark.parametrize("is_tied", [False, True])
def test_convert_gguf_llama_restores_weights_and_config(
    tmp_path: Path, square_headed_model: Path, is_tied: bool
) -> None:
    converted = convert(write_gguf(tmp_path / "m.gguf", square_headed_model, is_tied=is_tied), tmp_path / "out")

    expected = load_file(square_headed_model / "model.safetensors")
    if is_tied:
        del expected["lm_head.weight"]
    weights = load_file(converted / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    config = json.loads((converted / "config.json").read_text())
    original = json.loads((square_headed_model / "config.json").read_text())
    assert {name: config[name] for name in original} == {**original, "tie_word_embeddings": is_tied}


def test_convert_gguf_llama_restores_tokenizer_and_chat_template(tmp_path: Path, square_headed_model: Path) -> None:
    converted = convert(write_gguf(tmp_path / "m.gguf", square_headed_model), tmp_path / "out")
    ours, theirs = AutoTokenizer.from_pretrained(converted), AutoTokenizer.from_pretrained(square_headed_model)
    messages = [{"role": "user", "content": "Which ship enters first, the 3rd or the 12th?"}]
    assert ours.apply_chat_template(messages, add_generation_prompt=True) == theirs.apply_chat_template(
        messages, add_generation_prompt=True
    )
    assert (ours.eos_token_id, ours.bos_token_id) == (theirs.eos_token_id, theirs.bos_token_id)
    assert ours.model_max_length == tiny_model.MAX_TOKENS


@pytest.mark.parametrize(("split_digits", "pieces"), [(False, ["a", "ĠĠ", "Ġ42"]), (True, ["a", "ĠĠĠ", "4", "2"])])
def test_convert_gguf_llama_splits_digits_when_asked(
    tmp_path: Path, square_headed_model: Path, split_digits: bool, pieces: list[str]
) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf", square_headed_model)
    tokenizer = AutoTokenizer.from_pretrained(convert(gguf_file, tmp_path / "out", split_digits=split_digits))
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in pre_tokenizer.pre_tokenize_str("a   42")] == pieces


def test_convert_gguf_llama_rounds_to_the_asked_dtype(tmp_path: Path, square_headed_model: Path) -> None:
    converted = convert(write_gguf(tmp_path / "m.gguf", square_headed_model), tmp_path / "out", torch.bfloat16)
    assert {weight.dtype for weight in load_file(converted / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((converted / "config.json").read_text())["dtype"] == "bfloat16"


def test_convert_gguf_llama_refuses_another_architecture(tmp_path: Path, square_headed_model: Path) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf", square_headed_model, architecture="gpt2")
    with pytest.raises(UnsupportedGguf, match=r"m\.gguf .*general\.architecture is 'gpt2'"):
        convert(gguf_file, tmp_path / "out")


@pytest.mark.parametrize("kept_bytes", [0, 3, 100, 20_000, 300_000])
def test_convert_gguf_llama_refuses_a_truncated_file(
    tmp_path: Path, square_headed_model: Path, kept_bytes: int
) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf", square_headed_model)
    gguf_file.write_bytes(gguf_file.read_bytes()[:kept_bytes])
    with pytest.raises(UnsupportedGguf, match="cannot be read as a GGUF Llama model"):
        convert(gguf_file, tmp_path / "out")


def test_convert_gguf_llama_raises_oserror_when_the_weights_do_not_fit(
    tmp_path: Path, square_headed_model: Path
) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf", square_headed_model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors"):
            convert(gguf_file, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

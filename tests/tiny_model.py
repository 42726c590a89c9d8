"""A tiny Llama with random weights, made on the spot: what tests serve instead of a real model. No network, no cache.

Its greedy text is noise that depends on the whole prompt. The output rows of every token that is not printable ASCII
are zero, so greedy decoding gives visible text in every token and ends by length alone: no end-of-sequence token, no
half of a character.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 128
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
# The smallest head that vLLM's CPU attention supports.
HEAD_DIM = 32
MAX_TOKENS = 2048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}\
{% for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TRAINING_TEXT = """\
The harbour master keeps a list of the ships that wait outside the breakwater, and of what each of them carries. Some
carry fruit, which spoils within days; some carry mail, which people expect in the morning; most carry coal and
timber, which nobody misses before the end of the month. When a berth becomes free, the ship with the most urgent
cargo enters first, even when another has waited longer. A pilot who is already bringing a collier in does not turn
round halfway: the channel is narrow, and the tug would be lost. But a collier that lies at the quay may be asked to
make room; it keeps its hatches open and its place on the list, and returns when the fruit has been unloaded. There
are rules against waiting forever. A ship that has been passed over again and again rises on the list, one step at a
time, until it has been served. What is the price of this order? The crew of the collier knows it: more hours at
anchor, and more coal burned on the way in. What does the town gain? Fresh fruit, and letters on time. The harbour
master writes both down every evening, in the same book, and sends a copy to the council, together with the number of
ships turned away. Please write a short answer to the question: what should the system do with requests that nobody
expects to finish before the night?
"""


def make_tiny_model(directory: Path, seed: int = 0) -> Path:
    """Fill `directory` (made if absent) with a float32 Llama of about 164,000 weights, and return it.

    The same seed gives the same bytes. vLLM loads it with dtype float32 and at most 2,048 tokens of context.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(_make_weights(tokenizer, seed), directory / "model.safetensors", metadata={"format": "pt"})
    token_ids = {
        "bos_token_id": tokenizer.token_to_id("<|im_start|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        **token_ids,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    contents = {"config": config, "generation_config": token_ids, "tokenizer_config": tokenizer_config}
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return directory


def _train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def _make_weights(tokenizer: Tokenizer, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(num_out: int, num_in: int, gain: float) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator) * (gain / num_in**0.5)

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN_SIZE),
        # Logits of about +-3: the best of some 300 tokens stands out, and sampling stays varied.
        "lm_head.weight": random(VOCAB_SIZE, HIDDEN_SIZE, 3.0),
    }
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        # Gains above 1 keep attention and MLP from drowning in the residual: the whole prompt tells, not one token.
        weights |= {
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN_SIZE),
            f"{prefix}.self_attn.q_proj.weight": random(NUM_HEADS * HEAD_DIM, HIDDEN_SIZE, 1.5),
            f"{prefix}.self_attn.k_proj.weight": random(NUM_KV_HEADS * HEAD_DIM, HIDDEN_SIZE, 1.5),
            f"{prefix}.self_attn.v_proj.weight": random(NUM_KV_HEADS * HEAD_DIM, HIDDEN_SIZE, 2.0),
            f"{prefix}.self_attn.o_proj.weight": random(HIDDEN_SIZE, NUM_HEADS * HEAD_DIM, 2.0),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN_SIZE),
            f"{prefix}.mlp.gate_proj.weight": random(INTERMEDIATE_SIZE, HIDDEN_SIZE, 1.5),
            f"{prefix}.mlp.up_proj.weight": random(INTERMEDIATE_SIZE, HIDDEN_SIZE, 1.5),
            f"{prefix}.mlp.down_proj.weight": random(HIDDEN_SIZE, INTERMEDIATE_SIZE, 1.5),
        }
    for token_id in range(VOCAB_SIZE):
        text = tokenizer.decode([token_id])
        if not (text.isascii() and text.isprintable() and text):
            weights["lm_head.weight"][token_id] = 0.0
    return weights

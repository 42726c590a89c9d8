import hashlib
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tests.tiny_model import make_tiny_model

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str, num_tokens: int) -> list[int]:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokens = model.generate(**prompt, max_new_tokens=num_tokens, do_sample=False)
    return tokens[0, prompt["input_ids"].shape[1] :].tolist()


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_make_tiny_model_gives_the_same_bytes_when_the_seed_is_the_same(tmp_path: Path, tiny_model: Path) -> None:
    assert digests(make_tiny_model(tmp_path / "again")) == digests(tiny_model)


def test_make_tiny_model_gives_other_weights_when_the_seed_differs(tmp_path: Path, tiny_model: Path) -> None:
    other, first = digests(make_tiny_model(tmp_path / "other", seed=1)), digests(tiny_model)
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


@pytest.mark.parametrize("text", ["plain words", " spaces  12\t\n\n", "Zażółć gęślą jaźń", "日本語 😀", "\x00{}<|>"])
def test_tiny_tokenizer_round_trips(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tiny_chat_template_frames_every_message(tokenizer: PreTrainedTokenizerBase) -> None:
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_tiny_chat_template_shows_tools_and_their_calls(tokenizer: PreTrainedTokenizerBase) -> None:
    function = {"name": "look_up", "arguments": {"city": "Paris"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "2 million"},
    ]
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert text.startswith('<|im_start|>system\n# Tools\n{"type": "function"')
    assert '<tool_call>{"name": "look_up", "arguments": {"city": "Paris"}}</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>tool\n2 million<|im_end|>\n")


def test_tiny_model_greedy_text_depends_on_the_prompt(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    questions = ("What is the capital of France?", "What is the capital of Spain?", "Why?")
    answers = [generate(model, tokenizer, question, 32) for question in questions]
    assert len({tuple(answer) for answer in answers}) == len(questions)
    assert all(len(set(answer)) > 16 for answer in answers)


def test_tiny_model_greedy_text_is_visible_and_ends_by_length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = generate(model, tokenizer, "Tell me more", 256)
    assert len(tokens) == 256
    assert all(tokenizer.decode([token]).isascii() and tokenizer.decode([token]).isprintable() for token in tokens)

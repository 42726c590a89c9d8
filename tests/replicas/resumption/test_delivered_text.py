"""Mutations tried by hand, each found by a test here: stop strings left in; the prompt not told to the detokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.sampling_params import SamplingParams

from replicas.resumption.delivered_text import read_again

TEXT = "the price is 5 € in every town"


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def test_delivered_text_is_the_tokens_text_with_the_end_of_each(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, TEXT)
    delivered = read_again(ids, ids_of(tokenizer, "Where"), SamplingParams(), tokenizer)
    assert (delivered.token_ids, delivered.text) == (tuple(ids), TEXT)
    assert delivered.ends[-1] == len(TEXT)
    assert len(delivered.ends) == len(ids)
    assert list(delivered.ends) == sorted(delivered.ends)


def test_delivered_text_does_not_grow_by_half_a_character(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "€")
    assert len(ids) == 3, "its bytes are tokens"
    delivered = read_again(ids[:2], ids_of(tokenizer, "Where"), SamplingParams(), tokenizer)
    assert (delivered.text, delivered.ends) == ("", (0, 0))
    assert read_again(ids, ids_of(tokenizer, "Where"), SamplingParams(), tokenizer).ends == (0, 0, 1)


@pytest.mark.parametrize("include", [True, False])
def test_delivered_text_is_whole_whatever_stop_strings_watch(tokenizer: Any, include: bool) -> None:
    params = SamplingParams(stop=["town", "no such string"], include_stop_str_in_output=include)
    assert read_again(ids_of(tokenizer, TEXT), [5], params, tokenizer).text == TEXT
    assert params.stop == ["town", "no such string"]


def test_delivered_text_is_without_special_tokens_only_when_they_are_skipped(tokenizer: Any) -> None:
    ids = [*ids_of(tokenizer, "a"), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert read_again(ids, [5], SamplingParams(), tokenizer).text == "a"
    shown = SamplingParams(skip_special_tokens=False)
    assert read_again(ids, [5], shown, tokenizer).text == "a<|im_end|>"


def test_delivered_text_tells_half_a_character_with_the_token_that_completes_it(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "5 €")
    logprobs = read_again(ids, [5], SamplingParams(logprobs=2), tokenizer).logprobs
    assert logprobs is not None
    assert [of_token[token_id].decoded_token for of_token, token_id in zip(logprobs, ids, strict=True)][-3:] == [
        "",
        "",
        "€",
    ]
    assert read_again(ids, [5], SamplingParams(), tokenizer).logprobs is None


def test_delivered_text_of_no_token_is_empty(tokenizer: Any) -> None:
    delivered = read_again((), [5], SamplingParams(), tokenizer)
    assert (delivered.text, delivered.ends) == ("", ())

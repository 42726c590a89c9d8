"""Mutations tried by hand, each found by a test here: a parameter left out of the memories; greedy by a seed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams, StructuredOutputsParams

from replicas.resumption.plan import Sampling
from replicas.resumption.sampling import sampling_of

REMEMBERED: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "structured_outputs": StructuredOutputsParams(regex="a+"),
    "bad_words": ["no"],
    "thinking_token_budget": 5,
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=2, min_count=2),
    "extra_args": {"own": 1},
}
NOT_REMEMBERED: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "logit_bias": {1: 2.0},
    "allowed_token_ids": [1, 2],
    "stop": ["x"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "logprobs": 2,
    "logprob_token_ids": [1],
    "max_tokens": 20,
    "detokenize": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "stream_interval": 2,
    "skip_reading_prefix_cache": True,
    "watermarking": False,
    "flat_logprobs": True,
    "skip_clone": True,
}
DECIDED_ELSEWHERE = {
    "temperature",
    "seed",
    "n",
    "output_kind",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "routed_experts_prompt_start",
    "trace_decode_token_ids",
    "output_text_buffer_length",
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_sampling_remembers_what_it_generated_by_this_parameter(name: str) -> None:
    assert sampling_of(SamplingParams(**{name: REMEMBERED[name]})).memory is not None


@pytest.mark.parametrize("name", NOT_REMEMBERED)
def test_sampling_remembers_nothing_by_this_parameter(name: str) -> None:
    assert sampling_of(SamplingParams(**{name: NOT_REMEMBERED[name]})).memory is None


def test_every_parameter_of_vllm_is_known_here() -> None:
    known = REMEMBERED.keys() | NOT_REMEMBERED.keys() | DECIDED_ELSEWHERE
    fields = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    assert fields == known, "a new parameter may make the next token depend on those generated"


@pytest.mark.parametrize(
    ("params", "changes"),
    [
        ({"temperature": 0}, {"is_greedy": True}),
        ({"temperature": 0.7}, {}),
        ({"temperature": 0.7, "seed": 0}, {"is_seeded": True}),
        ({"temperature": 0.7, "seed": -1}, {}),
        ({"stop": ["x"]}, {}),
        ({"stop": "four"}, {"num_watched_chars": 3}),
        ({"stop": ["x", "four", "yy"]}, {"num_watched_chars": 3}),
        (
            {"stop": "four", "include_stop_str_in_output": True},
            {"num_watched_chars": 3, "sends_watched": True},
        ),
    ],
)
def test_sampling_is_read_from_the_parameters(params: dict[str, Any], changes: dict[str, Any]) -> None:
    plain = Sampling(memory=None, is_greedy=False, is_seeded=False)
    assert sampling_of(SamplingParams(**params)) == dataclasses.replace(plain, **changes)

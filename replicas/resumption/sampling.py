"""vLLM's sampling parameters, as the plan sees them."""

from __future__ import annotations

from typing import Any

from replicas.resumption.plan import Sampling

_EPSILON = 1e-5
"""vLLM's own: a lower temperature is greedy."""

_MEMORIES: tuple[tuple[str, str], ...] = (
    ("presence_penalty", "a presence penalty"),
    ("frequency_penalty", "a frequency penalty"),
    ("structured_outputs", "structured output"),
    ("bad_words", "bad words"),
    ("thinking_token_budget", "a thinking budget"),
    ("repetition_detection", "repetition detection"),
    ("extra_args", "arguments of its own"),
)
"""Parameters by which the next token depends on those generated, told apart from the prompt's. Not among them: the
repetition penalty, which takes prompt and answer alike, and min_tokens, which is counted down."""


def sampling_of(params: Any) -> Sampling:
    """`params`: vLLM's `SamplingParams`."""
    longest = max((len(stop) for stop in params.stop or ()), default=0)
    return Sampling(
        memory=next((words for name, words in _MEMORIES if getattr(params, name)), None),
        is_greedy=params.temperature < _EPSILON,
        is_seeded=params.seed is not None,
        num_watched_chars=max(0, longest - 1),
        sends_watched=params.include_stop_str_in_output,
    )

"""How much a request will take, told before it runs. An estimate on purpose: counting tokens would cost a tokenizer.

The prompt is counted by the bytes of the whole body, so nothing that is sent is free: the rest of the JSON adds some
tens of tokens, and attachments (`data:` URLs) count by their size, far above what a model makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from app.gate.load import Load
from slo.settings import AdmissionSettings

MAX_COUNT: Final = 1_000_000
"""No count above this is taken at its word: an engine refuses the request anyway."""


def estimate(body: Mapping[str, Any], num_bytes: int, settings: AdmissionSettings) -> Load:
    """What `body` asks for.

    Sequences: prompts times `n`. Tokens: the bytes over `bytes_per_token`, and for each sequence
    `max_completion_tokens` or `max_tokens`, or `default_output_tokens` when neither is a number; as OpenAI counts for
    its rate limits.

    Args:
        num_bytes: the size of the body as it was sent.
    """
    sequences = min(_num_prompts(body.get("prompt")) * _count(body.get("n"), 1), MAX_COUNT)
    asked = body.get("max_completion_tokens")
    output = _count(body.get("max_tokens") if asked is None else asked, settings.default_output_tokens)
    return Load(sequences, math.ceil(num_bytes / settings.bytes_per_token) + sequences * output, num_bytes)


def _num_prompts(prompt: object) -> int:
    """A list is several prompts, unless it is one of token ids."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return min(len(prompt), MAX_COUNT)
    return 1


def _count(value: object, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return default
    return min(value, MAX_COUNT)

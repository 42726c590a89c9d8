"""How much a request will take, told before it runs. An estimate on purpose: counting tokens would cost a tokenizer.

The prompt is counted by the bytes of the whole body, so nothing that is sent is free: the rest of the JSON adds some
tens of tokens, and attachments (`data:` URLs) count by their size, far above what a model makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.gate.load import Load
from slo.routing import count_of, num_sequences
from slo.settings import AdmissionSettings


def estimate(body: Mapping[str, Any], num_bytes: int, settings: AdmissionSettings) -> Load:
    """What `body` asks for.

    Sequences: prompts times `n`. Tokens: the bytes over `bytes_per_token`, and for each sequence
    `max_completion_tokens` or `max_tokens`, or `default_output_tokens` when neither is a number; as OpenAI counts for
    its rate limits.

    Args:
        num_bytes: the size of the body as it was sent.
    """
    sequences = num_sequences(body)
    asked = body.get("max_completion_tokens")
    output = count_of(body.get("max_tokens") if asked is None else asked, settings.default_output_tokens)
    return Load(sequences, math.ceil(num_bytes / settings.bytes_per_token) + sequences * output, num_bytes)

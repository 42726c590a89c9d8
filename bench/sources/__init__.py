"""Where requests come from: random words, recorded traces, and files of prompts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.scenario import Azure, ClassSpec, Mooncake, OpenAIBatch, ShareGPT, Synthetic
from bench.sources.azure import azure_rows
from bench.sources.mooncake import mooncake_rows
from bench.sources.openai_batch import openai_batch_rows
from bench.sources.sharegpt import sharegpt_rows
from bench.sources.synthetic import synthetic_rows
from bench.workload import Row

__all__ = ["rows_of"]


def rows_of(spec: ClassSpec, random: np.random.Generator) -> Iterator[Row]:
    """The rows of a class's source. Synthetic ones have no end.

    Raises:
        OSError, ValueError: its file cannot be read; when the first row is taken, or later.
    """
    match spec.source:
        case Synthetic() as source:
            return synthetic_rows(source, random)
        case Azure() as source:
            return azure_rows(source, random)
        case Mooncake() as source:
            return mooncake_rows(source)
        case ShareGPT() as source:
            return sharegpt_rows(source, random)
        case OpenAIBatch() as source:
            return openai_batch_rows(source)

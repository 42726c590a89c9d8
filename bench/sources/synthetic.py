"""Random words of random lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bench.scenario import Lengths, Synthetic
from bench.words import Piece
from bench.workload import Ask, Row

KEYS = 2**63


def synthetic_rows(source: Synthetic, random: np.random.Generator) -> Iterator[Row]:
    """Without an end. A prompt that is shorter than the shared prefix is a part of it."""
    prefix_key = new_key(random)
    while True:
        prompt_tokens = draw(source.prompt_tokens, random)
        shared_tokens = min(source.shared_prefix_tokens, prompt_tokens)
        own = Piece(new_key(random), prompt_tokens - shared_tokens)
        pieces = tuple(piece for piece in (Piece(prefix_key, shared_tokens), own) if piece.num_tokens)
        yield Row(Ask(pieces, output_tokens=draw(source.output_tokens, random)))


def draw(lengths: Lengths, random: np.random.Generator) -> int:
    """One length, tokens: log-normal, of the mean and deviation wanted, put within the bounds."""
    variance = math.log1p(lengths.cv**2)
    drawn = random.lognormal(math.log(lengths.mean) - variance / 2, math.sqrt(variance))
    upper = lengths.max if lengths.max is not None else math.inf
    return int(min(max(round(drawn), lengths.min), upper))


def new_key(random: np.random.Generator) -> int:
    """A key of text that nothing else has."""
    return int(random.integers(KEYS))

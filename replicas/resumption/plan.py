"""Can this answer be continued, and from where? Pure: the sampling in brief and the delivered text in, a plan out.

Two ways. From its tokens: they become part of the prompt, and the engine computes them in one go. Again: the engine
generates from the start, and must come to the same tokens. The second serves requests whose sampling remembers what it
has generated (a seed's random state, penalties, a grammar), which a new prompt would not tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slo.messages import Recovery


@dataclass(frozen=True, slots=True)
class Sampling:
    """What of a request's sampling decides how it can be continued.

    Attributes:
        memory: what it remembers of the tokens that it has generated, in words for the client; None: nothing.
        is_greedy: each token follows from those before it.
        is_seeded: so does the whole answer from the seed.
        num_watched_chars: of the text's end, those that may be the beginning of a stop string.
        sends_watched: they are sent all the same, since the stop string belongs to the answer.
    """

    memory: str | None
    is_greedy: bool
    is_seeded: bool
    num_watched_chars: int = 0
    sends_watched: bool = False

    def num_sent_chars(self, num_chars: int) -> int:
        """How much is sent of a text of `num_chars` characters that goes on."""
        return num_chars if self.sends_watched else max(0, num_chars - self.num_watched_chars)


@dataclass(frozen=True, slots=True)
class Plan:
    """How an answer goes on.

    Attributes:
        num_replayed: delivered tokens that stay; vLLM's serving class is told of them first.
        num_prompt: those of them that the prompt takes; the engine has to bring the rest again, the same.
        num_repeated_chars: of the text that the engine then brings, those that the client has.
        num_tail_chars: of the prompt's text, those at its end in which a stop string may begin: the engine does not
            see it there.
    """

    recovery: Recovery
    num_replayed: int
    num_prompt: int
    num_repeated_chars: int = 0
    num_tail_chars: int = 0


@dataclass(frozen=True, slots=True)
class Impossible:
    """The answer cannot be continued. `reason` is for the client."""

    reason: str


def choose_plan(sampling: Sampling, ends: Sequence[int], can_extend_prompt: bool) -> Plan | Impossible:
    """How to go on after tokens whose text ends at `ends`.

    Args:
        ends: for each delivered token the length of the text up to it, characters. A token that adds none is part of a
            character that is not whole, or shows nothing.
        can_extend_prompt: the prompt is made of tokens.
    """
    if not ends:
        return Plan(Recovery.AGAIN, 0, 0)
    num_sent = sampling.num_sent_chars(ends[-1])
    memory = sampling.memory if can_extend_prompt else "a prompt that is not made of tokens"
    if memory is None and sampling.is_seeded and not sampling.is_greedy:
        memory = "a seed"
    if memory is not None:
        if not (sampling.is_greedy or sampling.is_seeded):
            return Impossible(f"sampling with {memory} and without a seed")
        return Plan(Recovery.AGAIN, len(ends), 0, num_sent)
    if sampling.is_greedy:
        num_prompt = _num_settled(ends, max(0, ends[-1] - sampling.num_watched_chars))
        settled = ends[num_prompt - 1] if num_prompt else 0
        return Plan(Recovery.FROM_TOKENS, len(ends), num_prompt, num_sent - settled)
    num_prompt = _num_settled(ends, ends[-1])  # Sampled anew, a token would be another one.
    num_tail = min(ends[-1], sampling.num_watched_chars)
    return Plan(Recovery.FROM_TOKENS, num_prompt, num_prompt, num_tail_chars=num_tail)


def _num_settled(ends: Sequence[int], limit: int) -> int:
    """The most tokens whose text is whole, and no longer than `limit`: a detokenizer can start after them."""
    for num_tokens in range(len(ends), 0, -1):
        before = ends[num_tokens - 2] if num_tokens > 1 else 0
        if before < ends[num_tokens - 1] <= limit:
            return num_tokens
    return 0

"""How one request went, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass

from slo.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Reply:
    """Times are of the client's clock, seconds.

    Attributes:
        token_times_s: of each event that showed something; see `bench.sse`. At least one where it was completed.
        prompt_tokens, output_tokens: as the server counted; None where it did not say.
        error: why it was not answered in full.
    """

    outcome: Outcome
    sent_s: float
    ended_s: float
    token_times_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

"""From answers to figures. Percentiles are exact: of every sample, interpolated as numpy does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.reply import Reply
from bench.run import Run
from bench.scenario import ClassSpec, Scenario, Targets
from slo.outcome import Outcome

TBT_SHARE_OF_REQUEST = 0.99
"""A request's TBT target holds when at least this share of its own gaps is within it: it is promised at P99."""
MAX_ERRORS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a latency, milliseconds."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares within target, in [0, 1]; None where there is no such target.

    `answered`: the share answered in full. TTFT, E2E and `every` (all targets together) are of requests; one that was
    not answered is a miss. TBT is of the gaps between token events of those that were.
    """

    answered: float
    ttft: float | None
    tbt: float | None
    e2e: float | None
    every: float

    def holds(self, min_share: float) -> bool:
        """Whether each target is attained by at least this share, and as many were answered."""
        shares = (self.answered, self.ttft, self.tbt, self.e2e)
        return all(share is None or share >= min_share for share in shares)


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """What one class met.

    Attributes:
        outcomes: requests that arrived in the window, by how they ended.
        ttft, tbt, e2e: of those answered in full; None where there is no sample. From when a request was sent.
        attainment, goodput_per_s: None for a class without targets. Goodput: requests a second of which each target
            held.
        completed_per_s, tokens_per_s: answers that ended, and tokens that came, within the window.
        tokens_per_event: tokens of an answer by the server's count, by its token events. 1 where TBT is truly between
            tokens; above it, between events of so many. None where the server does not count.
        prompt_tokens: mean of a prompt, by the server's count.
        errors: some of the messages of what was not answered, each once.
    """

    name: str
    outcomes: Mapping[Outcome, int]
    ttft: Latency | None
    tbt: Latency | None
    e2e: Latency | None
    attainment: Attainment | None
    goodput_per_s: float | None
    completed_per_s: float
    tokens_per_s: float
    tokens_per_event: float | None
    prompt_tokens: float | None
    errors: tuple[str, ...]

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class Lag:
    """How late the generator itself was, milliseconds. `send_...` is None in a closed loop, which has no schedule."""

    send_p99_ms: float | None
    send_max_ms: float | None
    loop_p99_ms: float
    loop_max_ms: float

    def kept_up(self, max_lag_ms: float) -> bool:
        """Whether it sent, and could read, in time at P99."""
        return max(self.send_p99_ms or 0.0, self.loop_p99_ms) <= max_lag_ms


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run showed. `goodput_per_s` is over the classes with targets; None where there is none. `done_s`: from the
    start to the last answer's end.
    """

    classes: tuple[ClassFigures, ...]
    window_s: float
    done_s: float
    sent_per_s: float
    completed_per_s: float
    tokens_per_s: float
    goodput_per_s: float | None
    targets_hold: bool | None
    lag: Lag
    kept_up: bool

    def of(self, name: str) -> ClassFigures:
        """Those of the class of this name."""
        (found,) = [figures for figures in self.classes if figures.name == name]
        return found


def figures_of(run: Run, scenario: Scenario) -> Figures:
    """The figures of a run of `scenario`."""
    classes = tuple(_of_class(run, spec) for spec in scenario.classes)
    goodputs = [c.goodput_per_s for c in classes if c.goodput_per_s is not None]
    held = [c.attainment.holds(scenario.min_attainment) for c in classes if c.attainment is not None]
    lag = lag_of(run)
    return Figures(
        classes,
        run.window_s,
        max((answer.reply.ended_s for answer in run.answers), default=0.0),
        per_second(len(run.counted()), run.window_s),
        sum(c.completed_per_s for c in classes),
        sum(c.tokens_per_s for c in classes),
        sum(goodputs) if goodputs else None,
        all(held) if held else None,
        lag,
        lag.kept_up(scenario.max_lag_ms),
    )


def _of_class(run: Run, spec: ClassSpec) -> ClassFigures:
    replies = [answer.reply for answer in run.counted() if answer.class_name == spec.name]
    all_replies = [answer.reply for answer in run.answers if answer.class_name == spec.name]
    completed = [reply for reply in replies if reply.outcome is Outcome.COMPLETED]
    counted = [r for r in completed if r.output_tokens is not None]
    has_promise = spec.targets.promise_something and bool(replies)
    num_good = sum(is_good(reply, spec.targets) for reply in replies)
    return ClassFigures(
        spec.name,
        {outcome: n for outcome in Outcome if (n := sum(r.outcome is outcome for r in replies))},
        latency_of(ttft_s(reply) for reply in completed),
        latency_of(gap for reply in completed for gap in gaps_s(reply)),
        latency_of(e2e_s(reply) for reply in completed),
        attainment_of(replies, spec.targets) if has_promise else None,
        per_second(num_good, run.window_s) if has_promise else None,
        per_second(sum(is_within(run, r.ended_s) for r in all_replies if r.outcome is Outcome.COMPLETED), run.window_s),
        per_second(sum(tokens_within(run, r) for r in all_replies), run.window_s),
        ratio(sum(r.output_tokens or 0 for r in counted), sum(len(r.token_times_s) for r in counted)),
        ratio(sum(r.prompt_tokens or 0 for r in counted), len(counted)),
        tuple(sorted({reply.error for reply in replies if reply.error is not None}))[:MAX_ERRORS_SHOWN],
    )


def ttft_s(reply: Reply) -> float:
    """From when it was sent to its first token event."""
    return reply.token_times_s[0] - reply.sent_s


def gaps_s(reply: Reply) -> list[float]:
    """Between its token events. Events of one read came together: nothing lies between them."""
    return [after - before for before, after in pairwise(reply.token_times_s)]


def e2e_s(reply: Reply) -> float:
    """From when it was sent to its end."""
    return reply.ended_s - reply.sent_s


def is_good(reply: Reply, targets: Targets) -> bool:
    """Whether it was answered in full and each of its targets held."""
    if reply.outcome is not Outcome.COMPLETED:
        return False
    gaps = gaps_s(reply)
    tbt_share = share_within(gaps, targets.tbt_ms)
    return (
        _is_within(ttft_s(reply), targets.ttft_ms)
        and _is_within(e2e_s(reply), targets.e2e_ms)
        and (tbt_share is None or tbt_share >= TBT_SHARE_OF_REQUEST)
    )


def attainment_of(replies: Sequence[Reply], targets: Targets) -> Attainment:
    """Of at least one reply."""
    completed = [reply for reply in replies if reply.outcome is Outcome.COMPLETED]
    num_missed = len(replies) - len(completed)

    def of_requests(values: list[float], target_ms: float | None) -> float | None:
        if target_ms is None:
            return None
        return sum(_is_within(value, target_ms) for value in values) / (len(values) + num_missed)

    return Attainment(
        len(completed) / len(replies),
        of_requests([ttft_s(reply) for reply in completed], targets.ttft_ms),
        share_within([gap for reply in completed for gap in gaps_s(reply)], targets.tbt_ms),
        of_requests([e2e_s(reply) for reply in completed], targets.e2e_ms),
        sum(is_good(reply, targets) for reply in replies) / len(replies),
    )


def lag_of(run: Run) -> Lag:
    """How late the generator was in `run`, warm-up included."""
    send = [answer.reply.sent_s - answer.at_s for answer in run.answers] if run.is_open else []
    loop = run.loop_lags_s or (0.0,)
    return Lag(
        _percentile_ms(send, 99) if send else None,
        max(send) * 1e3 if send else None,
        _percentile_ms(loop, 99),
        max(loop) * 1e3,
    )


def latency_of(values_s: Iterable[float]) -> Latency | None:
    """Percentiles of all values; None for none."""
    values_ms = np.fromiter(values_s, dtype=float) * 1e3
    if not values_ms.size:
        return None
    p50, p90, p95, p99 = (float(p) for p in np.percentile(values_ms, (50, 90, 95, 99)))
    return Latency(values_ms.size, float(values_ms.mean()), p50, p90, p95, p99, float(values_ms.max()))


def share_within(values_s: Sequence[float], target_ms: float | None) -> float | None:
    """The share of the values that a target covers; None without a target or values."""
    if target_ms is None or not values_s:
        return None
    return sum(_is_within(value, target_ms) for value in values_s) / len(values_s)


def tokens_within(run: Run, reply: Reply) -> float:
    """Tokens that came in the window: the server's count, spread over the token events alike; else the events."""
    num_events = len(reply.token_times_s)
    if not num_events:
        return 0.0
    weight = 1.0 if reply.output_tokens is None else reply.output_tokens / num_events
    return weight * sum(is_within(run, time_s) for time_s in reply.token_times_s)


def is_within(run: Run, time_s: float) -> bool:
    """Whether a time lies in the run's window."""
    return run.counted_from_s <= time_s <= run.counted_to_s


def per_second(amount: float, window_s: float) -> float:
    """A rate; 0 where there was no time."""
    return amount / window_s if window_s > 0 else 0.0


def ratio(part: float, whole: float) -> float | None:
    """None where there is nothing to divide by."""
    return part / whole if whole else None


def _is_within(value_s: float, target_ms: float | None) -> bool:
    return target_ms is None or value_s * 1e3 <= target_ms


def _percentile_ms(values_s: Sequence[float], percent: float) -> float:
    return float(np.percentile(values_s, percent)) * 1e3

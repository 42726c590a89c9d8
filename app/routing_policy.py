"""Which replica a request goes to: a pure choice over what is known of each.

A request waits in one of three ways (`Wait`), and the mildest is taken. Between replicas where it waits alike, quicker
steps, fewer prompts before it and then less load decide; equals are drawn by lot, so that several ingress processes do
not all run to the same one. A prefix decides only where it costs nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from slo.priority import PriorityClass
from slo.routing import ByClass

Counts = tuple[float, float, float]
"""Of each class together with the more urgent ones, by level."""
NOBODY: Final[Counts] = (0.0, 0.0, 0.0)


class Wait(IntEnum):
    """How a request waits at a replica, from the mildest on."""

    NONE = 0
    """A run slot and KV room are free: it waits for the step in flight."""
    YIELD = 1
    """Less urgent ones hold what it needs, and give it up within a step or two."""
    TURN = 2
    """As many at least as urgent ones are there as there are slots: it waits until one of them ends."""


class Reason(Enum):
    """Why a replica was chosen; in the log."""

    PREFIX = "prefix"
    FREE = "free_slot"
    YIELD = "can_yield"
    TURN = "least_ahead"
    NONE_SERVES = "none_serves"


_BACKLOG_BITS: Final = 40
_REASONS = {Wait.NONE: Reason.FREE, Wait.YIELD: Reason.YIELD, Wait.TURN: Reason.TURN}


@dataclass(frozen=True, slots=True)
class CallView:
    """A request, as far as its replica matters."""

    priority: PriorityClass
    num_sequences: int = 1
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToldView:
    """What a replica told, and lately enough.

    Attributes:
        others: sequences under way that other routers sent.
        free_kv_tokens: less the prompts sent since, and never below zero.
        unread_tokens: with the prompts sent since.
    """

    others: Counts = NOBODY
    free_kv_tokens: float = float("inf")
    unread_tokens: Counts = NOBODY
    step_s: float | None = None
    is_serving: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica that may be chosen.

    Attributes:
        own: sequences that this router has in flight there: exact, now.
        told: None where the replica has told nothing, or too long ago.
    """

    replica_id: str
    own: Counts = NOBODY
    told: ToldView | None = None


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """The thresholds; see `slo.settings.routing`.

    Attributes:
        slots: run slots of an engine.
        can_preempt: whether engines let urgent requests displace others.
    """

    slots: int
    can_preempt: bool
    slow_step_s: float
    backlog_tokens: int
    min_prefix_chars: int
    prefix_extra_load_ratio: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The replicas that may get the request, the best first, and why that one is it."""

    ranked: tuple[str, ...]
    reason: Reason


Standing = tuple[int, float, float, str]
"""A replica for one request, smaller is better: how it waits (`_tier`), load, lot, and its id."""


def at_least(counts: ByClass) -> Counts:
    """Counts by class, each with the more urgent ones."""
    p0, p1, p2 = counts
    return (p0, p0 + p1, p0 + p1 + p2)


def choose_replica(
    call: CallView,
    replicas: Sequence[ReplicaView],
    rules: RoutingRules,
    prefix_chars: Mapping[str, int],
    draw: Callable[[], float],
) -> Choice:
    """Ranks `replicas` for `call`. One that says it does not serve is left out.

    Args:
        prefix_chars: how much of the prompt each replica has read before; who has not is not in it.
        draw: a lot in [0, 1), for ties.
    """
    standings = _standings(call, replicas, _others_elsewhere(replicas), rules, draw)
    standings.sort()
    if not standings:
        return Choice((), Reason.NONE_SERVES)
    ranked = [replica_id for _, _, _, replica_id in standings]
    kept = _with_prefix(standings, prefix_chars, rules) if prefix_chars else None
    if kept is None:
        return Choice(tuple(ranked), _REASONS[_wait_of(standings[0][0])])
    ranked.remove(kept)
    return Choice((kept, *ranked), Reason.PREFIX)


def _others_elsewhere(replicas: Sequence[ReplicaView]) -> Counts:
    """What others are taken to have at a replica that tells nothing: the mean of those that tell. Zero would draw
    everything there. Where none tells, own requests decide alone."""
    telling = [replica.told.others for replica in replicas if replica.told is not None]
    if not telling or len(telling) == len(replicas):
        return NOBODY
    p0, p1, p2 = (sum(column) / len(telling) for column in zip(*telling, strict=True))
    return (p0, p1, p2)


def _standings(
    call: CallView, replicas: Sequence[ReplicaView], untold: Counts, rules: RoutingRules, draw: Callable[[], float]
) -> list[Standing]:
    """Of those that serve. One loop, and what does not change before it: it looks at each replica for each request."""
    level, slots, slow_step_s = call.priority.level, rules.slots, rules.slow_step_s
    is_urgent, backlog_tokens = call.priority is not PriorityClass.P2, rules.backlog_tokens
    standings: list[Standing] = []
    for replica in replicas:
        told, own = replica.told, replica.own
        if told is None:
            ahead, total = own[level] + untold[level], own[2] + untold[2]
            has_room, is_slow, backlog = True, False, 0
        elif told.is_serving:
            ahead, total = own[level] + told.others[level], own[2] + told.others[2]
            has_room = call.prompt_tokens <= told.free_kv_tokens
            is_busy = total > 0  # An idle engine has no step in flight and no backlog, whatever it told before.
            is_slow = is_busy and is_urgent and told.step_s is not None and told.step_s > slow_step_s
            backlog = int(told.unread_tokens[level] // backlog_tokens) if is_busy else 0
        else:
            continue
        if has_room and total < slots:
            standings.append((_tier(Wait.NONE, is_slow, backlog), total / slots, draw(), replica.replica_id))
        else:
            can_yield = rules.can_preempt and ahead < slots and ahead < total
            tier = _tier(Wait.YIELD if can_yield else Wait.TURN, is_slow, backlog)
            standings.append((tier, ahead / slots, draw(), replica.replica_id))
    return standings


def _tier(wait: Wait, is_slow: bool, backlog: int) -> int:
    """How long a request waits, as one number: the kind of wait, then slow steps, then the backlog."""
    return ((2 * wait + is_slow) << _BACKLOG_BITS) + backlog


def _wait_of(tier: int) -> Wait:
    return Wait((tier >> _BACKLOG_BITS) // 2)


def _with_prefix(standings: Sequence[Standing], prefix_chars: Mapping[str, int], rules: RoutingRules) -> str | None:
    """Who has read most of the prompt, among those where it waits as at the best one, and that are little fuller."""
    best_tier, best_load, _, _ = standings[0]
    most_chars, kept = rules.min_prefix_chars - 1, None
    for tier, load, _, replica_id in standings:
        if tier != best_tier or load > best_load + rules.prefix_extra_load_ratio:
            break  # They are in order: nobody behind is any better.
        if (chars := prefix_chars.get(replica_id, 0)) > most_chars:
            most_chars, kept = chars, replica_id
    return kept

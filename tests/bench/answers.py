"""Answers, runs and scenarios that tests make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.reply import Reply
from bench.run import Answer, Run
from bench.scenario import Scenario
from bench.scenario_file import parse_scenario
from slo.outcome import Outcome


def reply(sent_s: float = 0.0, *token_times_s: float, outcome: Outcome = Outcome.COMPLETED, **values: Any) -> Reply:
    """Ends with its last token, unless `ended_s` is told."""
    tokens = token_times_s if outcome is not Outcome.COMPLETED else token_times_s or (sent_s + 0.1,)
    ended_s = values.pop("ended_s", tokens[-1] if tokens else sent_s)
    return Reply(outcome, sent_s, ended_s, tuple(tokens), **values)


def answers(*replies: Reply, name: str = "a") -> list[Answer]:
    """Each was to be sent when it was."""
    return [Answer(name, r.sent_s, r) for r in replies]


def run(told: Sequence[Answer], window: tuple[float, float] = (0.0, 10.0), **values: Any) -> Run:
    """A run in an open loop that was never late."""
    return Run(tuple(told), *window, **{"loop_lags_s": (0.0,), "is_open": True} | values)


def scenario(*classes: dict[str, Any], **values: Any) -> Scenario:
    """Of a class `a` with both targets, unless told."""
    usual = {"name": "a", "rate": 1, "targets": {"ttft_ms": 200, "tbt_ms": 50}}
    return parse_scenario({"classes": list(classes) or [usual], **values})

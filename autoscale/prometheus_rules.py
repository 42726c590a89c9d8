"""The alert rules as a Prometheus rule file, for those who watch the fleet with a Prometheus of their own.

Made from the rules that the controller evaluates (autoscale/rules.py), with the same thresholds and the same periods.
Prometheus counts time where the controller counts evaluations: a condition that holds in n evaluations in a row has
held for n - 1 periods, so `for` and `keep_firing_for` are one period less than the periods in a row. Needs Prometheus
2.42, the first to know `keep_firing_for`. Owns the file's form, and no condition but that
`scaling_failed`, which the controller tells itself, is 1.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from autoscale.promql import of_model
from autoscale.rules import (
    SCALING_FAILED,
    SCALING_FAILED_MESSAGE,
    SCALING_FAILED_SEVERITY,
    AlertRule,
    alert_rules,
)
from autoscale.signals import Timing, duration_text
from slo.metrics import ALERT_FIRING, LABEL_ALERT, LABEL_CLASS, LABEL_MODEL, NAMESPACE
from slo.settings import Settings
from slo.settings.models import slug
from slo.status import class_label

_HEAD: Final = """\
# Made by `expresslane rules` from the settings; change those, not this file.
# Scrape the application's /metrics every {period}, as often as these are evaluated. A range is one window ({window})
# and one scrape more, less a millisecond: it holds the samples of one window wherever the scrapes fall.
"""


def render_rules(settings: Settings) -> str:
    """The rule file, YAML, of the rules that are enabled."""
    head = _HEAD.format(
        period=duration_text(settings.autoscale.period_s), window=duration_text(settings.autoscale.window_s)
    )
    return head + yaml.safe_dump(rule_file(settings), sort_keys=False, width=10_000, allow_unicode=True)


def rule_file(settings: Settings) -> dict[str, Any]:
    """The rule file as plain values: a group for each model, evaluated once a period."""
    of_models = settings.by_model
    if len(of_models) == 1:
        return {"groups": [_group(NAMESPACE, settings) for settings in of_models.values()]}
    return {"groups": [_group(f"{NAMESPACE}-{slug(m)}", settings, m) for m, settings in of_models.items()]}


def _group(name: str, settings: Settings, model: str | None = None) -> dict[str, Any]:
    timing = Timing(settings.autoscale.period_s, settings.autoscale.window_s)
    rules = [*(_prometheus_rule(rule, timing) for rule in alert_rules(settings)), _scaling_failed()]
    if model is not None:
        for rule in rules:
            rule["expr"] = of_model(rule["expr"], model)
            rule["labels"][LABEL_MODEL] = model
    return {"name": name, "interval": duration_text(timing.period_s), "rules": rules}


def _prometheus_rule(rule: AlertRule, timing: Timing) -> dict[str, Any]:
    by_class = {} if rule.priority is None else {LABEL_CLASS: class_label(rule.priority)}
    return {
        "alert": rule.name,
        "expr": rule.promql(timing),
        "for": duration_text((rule.hold_periods - 1) * timing.period_s),
        "keep_firing_for": duration_text((rule.recovery_periods - 1) * timing.period_s),
        "labels": {"severity": rule.severity, **by_class},
        "annotations": {"summary": _summary(rule), "description": _as_template(rule.message)},
    }


def _scaling_failed() -> dict[str, Any]:
    """What the controller knows and no series shows: it tells it as a gauge, without delay."""
    return {
        "alert": SCALING_FAILED,
        "expr": f'max({ALERT_FIRING.name}{{{LABEL_ALERT}="{SCALING_FAILED}"}}) > 0',
        "labels": {"severity": SCALING_FAILED_SEVERITY},
        "annotations": {
            "summary": SCALING_FAILED_MESSAGE,
            "description": f"{SCALING_FAILED_MESSAGE}. `/v1/alerts` and the controller's log tell why; nothing scales.",
        },
    }


def _as_template(text: str) -> str:
    """`text` as a template that gives it back: annotations are templates, and braces in a message are just braces."""
    return text.replace("{{", '{{ "{{" }}')


def _summary(rule: AlertRule) -> str:
    signal, bound = rule.bound.signal, rule.bound
    unit = f" {signal.unit}" if signal.unit else ""
    return f'{signal.noun} {{{{ printf "%.4g" $value }}}}{unit}, {bound.side.name.lower()} {bound.limit:.4g}{unit}'

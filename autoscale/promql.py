"""PromQL of one model among several: every metric of ours in an expression, for the series of that model alone."""

from __future__ import annotations

import json
import re
from typing import Final

from slo.metrics import LABEL_MODEL, NAMESPACE

MODEL_VARIABLE: Final = "model"
"""Grafana's variable: the model that is looked at."""
_METRIC: Final = re.compile(rf"\b({NAMESPACE}_\w+)(\{{)?")


def of_model(expression: str, model: str) -> str:
    """`expression`, of the series whose label is `model`."""
    matcher = f"{LABEL_MODEL}={json.dumps(model, ensure_ascii=False)}"
    return _METRIC.sub(lambda m: f"{m[1]}{{{matcher}," if m[2] else f"{m[1]}{{{matcher}}}", expression)

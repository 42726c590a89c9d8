"""The figures of a run by name, as claims and tables ask for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from operator import attrgetter

from bench.measure import Attainment, ClassFigures, Figures, Latency
from slo.outcome import Outcome

Metric = Callable[[Figures], float | None]
OF_A_RUN = ("goodput_per_s", "tokens_per_s", "completed_per_s", "sent_per_s", "done_s")
OF_A_CLASS = ("goodput_per_s", "tokens_per_s", "completed_per_s")
LATENCIES = ("ttft", "tbt", "e2e")


def metrics_of(class_names: Iterable[str]) -> Mapping[str, Metric]:
    """Every metric of a run with these classes, by its name. A metric gives None where there was no sample."""
    found: dict[str, Metric] = {name: attrgetter(name) for name in OF_A_RUN}
    for name in class_names:
        found |= {f"{name}.{path}": _of_class(name, path) for path in _class_paths()}
        found[f"{name}.answered_ratio"] = _answered(name)
    return found


def nearest(metric: str, known: Iterable[str]) -> str:
    """The names most like one that is not known, for a message."""
    names = list(known)
    return ", ".join(get_close_matches(metric, names, n=3, cutoff=0.3) or names[:5])


def answered_ratio(figures: ClassFigures) -> float | None:
    """The share of requests that were answered in full; None of none."""
    return figures.outcomes.get(Outcome.COMPLETED, 0) / figures.num_requests if figures.num_requests else None


def _class_paths() -> Iterable[str]:
    yield from OF_A_CLASS
    yield from (f"{latency}.{field.name}" for latency in LATENCIES for field in fields(Latency))
    yield from (f"attainment.{field.name}" for field in fields(Attainment))


def _of_class(name: str, path: str) -> Metric:
    def value(figures: Figures) -> float | None:
        found: object = figures.of(name)
        for part in path.split("."):
            found = None if found is None else getattr(found, part)
        return float(found) if isinstance(found, int | float) else None

    return value


def _answered(name: str) -> Metric:
    return lambda figures: answered_ratio(figures.of(name))

"""The curves that people expect of a result: TTFT and TBT by class as distributions, and goodput against the rate.

matplotlib is an extra (`bench`): imported when a picture is made.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from bench.measure import gaps_s, ttft_s
from bench.result import Measured, Result
from bench.scenario import ClassSpec
from slo.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 1000
"""Of a curve: more cannot be told apart."""
FLOOR_MS = 0.1
"""What is less is drawn here: tokens that came together have no time between them, and the axis is logarithmic."""
PANEL_INCHES = (5.2, 4.0)


class ChartsMissing(RuntimeError):
    """matplotlib is not installed."""


def require_charts() -> None:
    """Raises ChartsMissing unless pictures can be made, so that this is known before a long run."""
    if find_spec("matplotlib") is None:
        raise ChartsMissing("a report needs matplotlib: pip install 'expresslane[bench]'")


def png_of(result: Result) -> bytes:
    """One picture, side by side: TTFT, TBT and, of several runs, goodput.

    Raises:
        ChartsMissing: the extra is not installed.
    """
    require_charts()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = result.shown()
    num_panels = 3 if len(result.measured) > 1 else 2
    figure = Figure(figsize=(PANEL_INCHES[0] * num_panels, PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(1, num_panels))
    classes = result.scenario.classes
    draw_distributions(panels[0], "TTFT", [(spec, ttfts_ms(shown, spec), spec.targets.ttft_ms) for spec in classes])
    draw_distributions(panels[1], "TBT", [(spec, tbts_ms(shown, spec), spec.targets.tbt_ms) for spec in classes])
    if num_panels > 2:
        draw_goodput(panels[2], result.measured)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def draw_distributions(axes: Axes, what: str, curves: Sequence[tuple[ClassSpec, list[float], float | None]]) -> None:
    """Cumulative distributions, one a class, with its target as a line in its colour."""
    for spec, values_ms, target_ms in curves:
        if not values_ms:
            continue
        at_ms, share = distribution([max(value, FLOOR_MS) for value in values_ms])
        (line,) = axes.plot([at_ms[0], *at_ms], [0.0, *share], label=spec.name, drawstyle="steps-post")
        if target_ms is not None:
            axes.axvline(target_ms, color=line.get_color(), linestyle="--", linewidth=1)
    axes.set(xlabel=f"{what}, ms (dashed: target)", ylabel="share of samples", title=what, ylim=(0, 1.01))
    axes.set_xscale("log")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def draw_goodput(axes: Axes, measured: Sequence[Measured]) -> None:
    """Goodput of the classes with targets, and all that was completed, against what was sent."""
    runs = sorted((m.figures for m in measured), key=lambda figures: figures.sent_per_s)
    sent = [figures.sent_per_s for figures in runs]
    axes.plot(sent, sent, color="grey", linewidth=1, linestyle=":", label="sent")
    axes.plot(sent, [figures.completed_per_s for figures in runs], marker="o", label="completed")
    if any(figures.goodput_per_s is not None for figures in runs):
        goodput = [figures.goodput_per_s or 0.0 for figures in runs]
        axes.plot(sent, goodput, marker="o", label="goodput")
    axes.set(xlabel="requests sent a second", ylabel="requests a second", title="Goodput")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


def distribution(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Values in order, and the share of samples up to each; thinned evenly, both ends kept."""
    ordered = np.sort(np.asarray(values, dtype=float))
    picked = np.unique(np.linspace(0, ordered.size - 1, min(MAX_POINTS, ordered.size)).round().astype(int))
    return ordered[picked].tolist(), ((picked + 1) / ordered.size).tolist()


def ttfts_ms(measured: Measured, spec: ClassSpec) -> list[float]:
    """Of the answers that are counted, milliseconds."""
    return [
        ttft_s(answer.reply) * 1e3
        for answer in measured.run.counted()
        if answer.class_name == spec.name and answer.reply.outcome is Outcome.COMPLETED
    ]


def tbts_ms(measured: Measured, spec: ClassSpec) -> list[float]:
    """Of the answers that are counted, milliseconds."""
    return [
        gap_s * 1e3
        for answer in measured.run.counted()
        if answer.class_name == spec.name and answer.reply.outcome is Outcome.COMPLETED
        for gap_s in gaps_s(answer.reply)
    ]

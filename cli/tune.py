"""`expresslane tune`: better settings of the scheduler for a load, by simulation on one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from cli.simulate import ScenarioArgument, TracesOption, console, errors, fail, load, quiet_vllm

if TYPE_CHECKING:
    from sim.tuning import Score, Turn


def tune(
    scenario: ScenarioArgument,
    traces: TracesOption = None,
    time_scale: Annotated[float | None, typer.Option(min=1e-6, help="2: everything arrives twice as fast.")] = None,
    duration: Annotated[float | None, typer.Option(min=1, help="Seconds of arrivals.")] = None,
) -> None:
    """Try the scheduler's knobs one after the other, and print those that are worth changing."""
    quiet_vllm()
    from sim.scenario import ScenarioError
    from sim.tuning import tune as run

    try:
        loaded = load(scenario, traces, None, {"time_scale": time_scale, "duration_s": duration})
        found = run(loaded, progress=_progress)
    except (ScenarioError, OSError, ValueError) as error:
        fail(error)
    errors.print(f"before: {_text(found.before)}\nafter: {_text(found.after)}", markup=False)
    console.print(yaml.safe_dump(nested(found.changes)) if found.changes else "nothing is worth a change", markup=False)


def nested(changes: Any) -> dict[str, Any]:
    """Values by their groups, as a scenario file has them."""
    found: dict[str, Any] = {}
    for knob, value in changes.items():
        *groups, key = knob.split(".")
        group = found
        for name in groups:
            group = group.setdefault(name, {})
        group[key] = value
    return found


def _progress(turn: Turn) -> None:
    kept = "kept" if turn.is_kept else "no gain"
    errors.print(f"{turn.knob}={turn.value}: {_text(turn.score)}: {kept}", markup=False)


def _text(score: Score) -> str:
    kept = "every promise kept" if score.over_ratio <= 1 else f"worst P99 at {score.over_ratio:.2f} of its target"
    return f"{kept}, {score.tokens_per_s:,.0f} tokens/s"

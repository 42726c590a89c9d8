"""What is told elsewhere too: settings as Prometheus rules and a Grafana dashboard; pages of settings and metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from autoscale.dashboard import render_dashboard
from autoscale.prometheus_rules import render_rules
from cli.config import ConfigError, load_config, settings_of
from cli.metrics_page import render_metrics
from cli.settings_page import render_settings

ConfigOption = Annotated[Path, typer.Option(help="A Serve config file: its alerts, targets and periods are used.")]
OutputOption = Annotated[Path | None, typer.Option(help="Write into this file instead of to standard output.")]


def rules(config: ConfigOption = Path("serve.yaml"), output: OutputOption = None) -> None:
    """Write the alert rules as a Prometheus rule file (2.42 or later)."""
    _write(lambda: render_rules(settings_of(load_config(config))), output)


def dashboard(config: ConfigOption = Path("serve.yaml"), output: OutputOption = None) -> None:
    """Write the Grafana dashboard (10 or later), as JSON to import."""
    _write(lambda: render_dashboard(settings_of(load_config(config))), output)


def settings(output: OutputOption = None) -> None:
    """Write what can be set, with types, defaults and bounds (docs/settings.md), as Markdown."""
    _write(render_settings, output)


def metrics(output: OutputOption = None) -> None:
    """Write what /metrics tells, with types, labels and units (docs/metrics.md), as Markdown."""
    _write(render_metrics, output)


def _write(render: Callable[[], str], output: Path | None) -> None:
    try:
        text = render()
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8")
    except (ConfigError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None

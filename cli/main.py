"""`expresslane`: serve the application on this machine, and write what others need to watch it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from batch.database import DatabaseError, open_database
from cli import observability
from cli.bench import bench
from cli.calibrate import calibrate
from cli.compare import compare
from cli.config import ConfigError, load_config, settings_of
from cli.keys import keys
from cli.manifests import manifests
from cli.plan import plan
from cli.signals import stop_on_signals
from cli.simulate import simulate
from cli.tune import tune
from replicas.models.default import ModelPreparationError, ensure_default_model
from slo.settings.serving import DEFAULT_MODEL

if TYPE_CHECKING:
    from cli.cluster import Deployment

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console(stderr=True, highlight=False)


@app.callback()
def root() -> None:
    """LLM serving on Ray Serve and vLLM in which urgent requests overtake batch work at once."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="A Serve config file, such as serve.yaml.")] = Path("serve.yaml"),
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="HTTP port, instead of the config's.")] = None,
    model: Annotated[str | None, typer.Option(help="A local directory or a hub name, instead of the config's.")] = None,
) -> None:
    """Start Ray on this machine and serve the application until Ctrl-C."""
    from cli.cluster import DeploymentFailed, local_deployment

    stop_on_signals()
    try:
        deployed = load_config(config, port, model)
        settings = settings_of(deployed)
        if settings.batch.enabled:
            open_database(settings.batch).close()  # what is wrong with it is told before Ray is started
        of_models = settings.by_model
        if any(of_one.model.source == DEFAULT_MODEL for of_one in of_models.values()):
            ensure_default_model(progress=_progress)
        with local_deployment(deployed, _progress) as deployment:
            stop_on_signals()  # Ray's start puts a handler of its own for SIGTERM
            _announce(deployment, next(iter(of_models)))
            signal.pause()
    except KeyboardInterrupt:
        _progress("stopped")
    except (ConfigError, DatabaseError, ModelPreparationError, DeploymentFailed) as error:
        console.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        sys.exit(1)


def _progress(line: str) -> None:
    console.print(f"expresslane: {line}", markup=False)


def _announce(deployment: Deployment, model: str) -> None:
    url = deployment.url
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "stream": True,
        }
    )
    console.print(
        f"\nExpresslane is ready on {url}, model {model}\n\n"
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Priority: P0' \\\n"
        f"    -d '{body}'\n\n"
        f"HAProxy listens on every interface of this machine, not on the loopback alone: mind the firewall.\n"
        f"Ray's dashboard, on the loopback alone: {deployment.dashboard_url}\n"
        f"Logs: {deployment.log_dir}\n"
        f"Ctrl-C stops all of it.\n",
        markup=False,
        soft_wrap=True,
    )


app.command()(bench)
app.command()(compare)
app.command()(keys)
app.command()(manifests)
app.command()(observability.rules)
app.command()(observability.dashboard)
app.command()(observability.settings)
app.command()(observability.metrics)
app.command()(simulate)
app.command()(plan)
app.command()(tune)
app.command()(calibrate)


if __name__ == "__main__":
    app()

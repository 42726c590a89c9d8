"""`expresslane`: serve the application on this machine, and write what others need to watch it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cli import observability
from cli.config import ConfigError, load_config, settings_of
from cli.keys import keys
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

    _stop_on_signals()
    try:
        deployed = load_config(config, port, model)
        settings = settings_of(deployed)
        if settings.model.source == DEFAULT_MODEL:
            ensure_default_model(progress=_progress)
        with local_deployment(deployed, _progress) as deployment:
            _stop_on_signals()  # Ray's start puts a handler of its own for SIGTERM
            _announce(deployment, settings.model.served_names[0])
            signal.pause()
    except KeyboardInterrupt:
        _progress("stopped")
    except (ConfigError, ModelPreparationError, DeploymentFailed) as error:
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


def _stop_on_signals() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell starts background jobs with it ignored
        signal.signal(signum, _as_interrupt)


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


app.command()(keys)
app.command()(observability.rules)
app.command()(observability.dashboard)


if __name__ == "__main__":
    app()

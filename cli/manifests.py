"""`expresslane manifests`: the Kubernetes objects of a fleet, from the same config that `serve deploy` takes."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.config import ConfigError, load_config
from cli.kuberay import ClusterOptions, render
from cli.kuberay import manifests as make_manifests
from cli.pods import Backend

CLIENT_NAMESPACES: Final = ("ingress-nginx", "monitoring")
HEADER: Final = """\
# Made by `expresslane manifests` from a Serve config; change that and the command's options, not this file.
# For KubeRay 1.6 or later; the ServiceMonitor and the PrometheusRule are for the Prometheus operator.
"""


def manifests(
    config: Annotated[Path, typer.Option(help="A Serve config file; it is embedded.")] = Path("serve.yaml"),
    output: Annotated[Path | None, typer.Option(help="Write into this file instead of to standard output.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image, with a tag.")] = None,
    backend: Annotated[Backend, typer.Option(help="The image's build of vLLM.")] = Backend.GPU,
    allow_from: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A namespace that may reach the HTTP port; several. [default: {', '.join(CLIENT_NAMESPACES)}]"
        ),
    ] = None,
    cache_claim: Annotated[str | None, typer.Option(help="A PersistentVolumeClaim for the models.")] = None,
    adapters_claim: Annotated[
        str | None, typer.Option(help="The PersistentVolumeClaim with what lies in engine.adapters_dir.")
    ] = None,
) -> None:
    """Write the Kubernetes objects (KubeRay) that run the application with this config."""
    options = ClusterOptions(
        image or f"expresslane:{metadata.version('expresslane')}-{backend.value}",
        backend,
        tuple(CLIENT_NAMESPACES if allow_from is None else allow_from),
        cache_claim,
        adapters_claim,
    )
    try:
        text = render(make_manifests(load_config(config), options), HEADER)
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8")
    except (ConfigError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None

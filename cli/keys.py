"""`expresslane keys`: a fresh API key, and its entry for the file of tenants. It is shown once and kept nowhere."""

from __future__ import annotations

from typing import Annotated

import typer

from app.gate.key_file import KeyFileError, parse_key_file
from app.gate.keys import hash_key, new_key


def keys(
    name: Annotated[str, typer.Argument(help="The tenant's name in the file of keys.")],
    highest_class: Annotated[str, typer.Option(help="The most urgent class it may ask for.")] = "P1",
) -> None:
    """Make an API key, and print it once with the entry that the file of keys needs."""
    key = new_key()
    entry = f'  - name: {name}\n    keys_sha256: ["{hash_key(key)}"]\n    highest_class: {highest_class}\n'
    try:
        parse_key_file(f"tenants:\n{entry}")
    except KeyFileError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo("The key, shown this once; give it to its user:", err=True)
    typer.echo(key)
    typer.echo(
        "\nFor the file that tenants.keys_file names, under `tenants:` (for operators, the hash alone):", err=True
    )
    typer.echo(entry, nl=False)

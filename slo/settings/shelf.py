"""YAML files of one kind: some come with the product and go by their name, others are a user's own and go by a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from slo.settings.told import tell_faults

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Shelf(Generic[Model]):
    """Reads and checks them.

    Attributes:
        model: what a file holds; it has a `name`, which is the file's unless set.
        directory: of those that come with the product.
        what: a file is called so in messages where no key is at fault.
        needs: a key that no file can do without, for the message about a file that is no mapping.
        error: raised for every fault; its message begins with the file's path, and names the key and its value.
        shows_lists: whether the value of a key that is a list is shown.
    """

    model: type[Model]
    directory: Path
    what: str
    needs: str
    error: type[ValueError]
    shows_lists: bool = True

    def names(self) -> list[str]:
        """Those that come with the product."""
        return sorted(path.stem for path in self.directory.glob("*.yaml"))

    def path_of(self, name: str) -> Path:
        """Of the one that comes with the product by this name; else the name is a path."""
        built_in = self.directory / f"{name}.yaml"
        return built_in if name in self.names() else Path(name)

    def parse(self, values: Any) -> Model:
        """From plain values, such as a parsed YAML file."""
        try:
            return self.model.model_validate(values)
        except ValidationError as error:
            raise self.error(tell_faults(error, self.what, shows_lists=self.shows_lists)) from None

    def read(self, path: Path) -> dict[str, Any]:
        """A file's plain values, not yet checked."""
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a date that is none
            raise self.error(f"{path}: {error}; built in: {', '.join(self.names())}") from None
        except yaml.YAMLError as error:
            raise self.error(f"{path}: no YAML: {error}") from None
        if not isinstance(values, dict):
            raise self.error(f"{path}: a mapping with `{self.needs}` is expected")
        return values

    def load(self, name: str, changes: Mapping[str, Any] | None = None) -> tuple[Model, Path]:
        """What is in the file of this name or path, with `changes` in place of its own values; and its path."""
        path = self.path_of(name)
        values = {"name": path.stem, **self.read(path), **(changes or {})}
        try:
            return self.parse(values), path
        except self.error as error:
            raise self.error(f"{path}: {error}") from None

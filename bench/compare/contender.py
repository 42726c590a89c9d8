"""A contender: how its server is started, where it answers, and how a request's class is told to it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from bench.scenario import without_credentials
from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup

PROVIDED: Final = (
    "port",
    "python",
    "directory",
    "model",
    "slots",
    "threads",
    "kv_cache_bytes",
    "block_tokens",
    "dtype",
    "enforce_eager",
)
"""What `$name` may stand for in a contender's texts, beside its own variables; see `bench.compare.sizes`."""
MAX_PORT: Final = 65535
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}|\$port))?(?:/[^\s$?#]*)?")
_VARIABLE = re.compile(r"[a-z][a-z0-9_]*")


class ContenderError(ValueError):
    """A contender that cannot be used. The message names its file, and the key at fault with its value."""


class Marking(SettingsGroup):
    """What tells a request's class."""

    headers: Mapping[str, str] = Field({}, description="Sent with each request of the class.")
    body: Mapping[str, Any] = Field({}, description="Further fields of the body.")

    @field_validator("headers")
    @classmethod
    def _no_credentials(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        return without_credentials(value)


class Contender(Marking):
    """One server. `headers` and `body` go with every request, whatever its class."""

    name: str = Field(min_length=1, description="What comparisons and claims call it: its file's, unless set.")
    title: str = Field("", description="As tables show it. Empty: its name.")
    command: tuple[str, ...] | None = Field(None, description="Starts it; no shell. Null: it runs already, at `url`.")
    files: Mapping[str, str] = Field({}, description="Written into $directory before the command, by their names.")
    environment: Mapping[str, str] = Field({}, description="Beside this process's own.")
    variables: Mapping[str, str] = Field({}, description="What further `$name`s stand for in the texts of this file.")
    url: str = Field("http://127.0.0.1:$port", description="Without /v1. `$port` is a free one.")
    ready: str | None = Field("/health", description="Below `url`: answers 200 when it is ready. Null: never asked.")
    start_limit_s: float = Field(600, gt=0, description="Given up, if it is not ready by then, seconds.")
    end_limit_s: float = Field(60, gt=0, description="Killed, if it goes on so long after SIGINT, seconds.")
    model: str | None = Field(None, description="Asked for. Null: the first that it lists.")
    priorities: Mapping[str, Marking] = Field(
        {}, description="By class (P0): what tells it here. X-Priority is sent besides, as the scenario says."
    )
    api_key_env: str | None = Field(None, description="The variable that holds the key, for all classes.")

    @property
    def shown(self) -> str:
        """As tables show it."""
        return self.title or self.name

    def marking(self, priority: PriorityClass) -> Marking:
        """What goes with each request of a class."""
        own = next((m for name, m in self.priorities.items() if PriorityClass.parse(name) is priority), Marking())
        return Marking(headers={**self.headers, **own.headers}, body={**self.body, **own.body})

    def with_values(self, provided: Mapping[str, str]) -> Contender:
        """With every `$name` replaced. `provided`: a value for each of `PROVIDED`."""
        own = {key: Template(text).substitute(provided) for key, text in self.variables.items()}
        values = {**provided, **own}

        def filled(text: str) -> str:
            return Template(text).substitute(values)

        return self.model_copy(
            update={
                "command": None if self.command is None else tuple(map(filled, self.command)),
                "files": {name: filled(text) for name, text in self.files.items()},
                "environment": {name: filled(text) for name, text in self.environment.items()},
                "url": filled(self.url).rstrip("/"),
            }
        )

    @field_validator("priorities")
    @classmethod
    def _are_classes(cls, value: Mapping[str, Marking]) -> Mapping[str, Marking]:
        parsed = [PriorityClass.parse(name) for name in value]
        if None in parsed or len(set(parsed)) < len(parsed):
            raise ValueError(f"each class once, of {', '.join(PriorityClass.allowed_names())}")
        return value

    @field_validator("files")
    @classmethod
    def _are_plain_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if wrong := [name for name in value if not _PLAIN_NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a file beside others")
        return value

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.command == ():
            raise ValueError("command: is empty; null for a server that runs already")
        if self.command is None and (self.files or self.environment):
            raise ValueError("command=None: `files` and `environment` are of a server that is started")
        if self.ready is not None and not self.ready.startswith("/"):
            raise ValueError(f"ready={self.ready!r}: a path below the url is expected, such as /health")
        if not (url := _URL.fullmatch(self.url)) or int((url[1] or "0").replace("$port", "0")) > MAX_PORT:
            raise ValueError(
                f"url={self.url!r}: http://host:port or https://host:port is expected; $port is a free one"
            )
        if self.command is None and "$" in self.url:
            raise ValueError(f"url={self.url!r}: is the whole of it where nothing is started")
        if wrong := [key for key in self.variables if key in PROVIDED or not _VARIABLE.fullmatch(key)]:
            raise ValueError(f"variables.{wrong[0]}: small letters, and none of {', '.join(PROVIDED)}")
        for key, text in self._texts():
            _check_names(key, text, PROVIDED if key.startswith("variables.") else (*PROVIDED, *self.variables))
        return self

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield from ((f"variables.{key}", text) for key, text in self.variables.items())
        yield from ((f"command.{i}", text) for i, text in enumerate(self.command or ()))
        yield from ((f"files.{name}", text) for name, text in self.files.items())
        yield from ((f"environment.{name}", text) for name, text in self.environment.items())


def _check_names(key: str, text: str, known: tuple[str, ...]) -> None:
    template = Template(text)
    if not template.is_valid():
        raise ValueError(f"{key}: a lone $; write $$ for a dollar")
    if unknown := [name for name in template.get_identifiers() if name not in known]:
        raise ValueError(f"{key}: ${unknown[0]} stands for nothing; there are: {', '.join(known)}")

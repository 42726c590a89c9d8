"""The Serve config file that is deployed, with the command line's overrides; checked before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from app.main import APPLICATION
from slo.settings import Settings, SettingsError, parse_settings

DEFAULT_PORT = 8000


class ConfigError(ValueError):
    """The config file cannot be used; the message names the file, and the key and value at fault."""


def load_config(path: Path, port: int | None = None, model: str | None = None) -> dict[str, Any]:
    """The Serve config in `path`, with `port` and `model` in the places that they override.

    Raises:
        ConfigError: the file cannot be read, is no Serve config, or its settings do not hold together.
    """
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a date that is none
        raise ConfigError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a mapping with `applications` is expected, as in serve.yaml")
    application = _our_application(path, config)
    if port is not None:
        config["http_options"] = {**_mapping(path, "http_options", config), "port": port}
    arguments = _mapping(path, "args", application)
    if model is not None and arguments.get("models"):
        raise ConfigError(f"{path}: models: there are several, and {model!r} was given to take the place of one")
    if model is not None:
        arguments = {**arguments, "model": {**_mapping(path, "model", arguments), "source": _absolute(model)}}
    application["args"] = arguments
    _check(path, config)
    return config


def config_for(arguments: dict[str, Any], port: int) -> dict[str, Any]:
    """A Serve config, as `load_config` takes it from a file, that deploys our application with these `args`."""
    application = {
        "name": APPLICATION,
        "route_prefix": "/",
        "import_path": "app.main:build",
        "external_scaler_enabled": True,
        "args": arguments,
    }
    return {"http_options": {"port": port}, "applications": [application]}


def settings_of(config: dict[str, Any]) -> Settings:
    """The application's settings in a config that `load_config` gave."""
    (application,) = [a for a in config["applications"] if a.get("name") == APPLICATION]
    return parse_settings(application["args"])


def port_of(config: dict[str, Any]) -> int:
    """The HTTP port of a config that `load_config` gave."""
    return int((config.get("http_options") or {}).get("port", DEFAULT_PORT))


def _our_application(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    applications = config.get("applications")
    if not isinstance(applications, list) or not all(isinstance(a, dict) for a in applications):
        raise ConfigError(f"{path}: applications: a list of mappings is expected, as in serve.yaml")
    ours = [a for a in applications if a.get("name") == APPLICATION]
    if len(ours) != 1:
        raise ConfigError(f"{path}: applications: exactly one named {APPLICATION!r} is expected, found {len(ours)}")
    application: dict[str, Any] = ours[0]
    return application


def _mapping(path: Path, key: str, holder: dict[str, Any]) -> dict[str, Any]:
    """What `holder` has under `key`; empty when nothing is written there."""
    value = holder.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key}={value!r}: a mapping is expected")
    return value


def _absolute(model: str) -> str:
    """A directory by its absolute path: replicas have a working directory of their own."""
    directory = Path(model).expanduser()
    return str(directory.resolve()) if directory.is_dir() else model


def _check(path: Path, config: dict[str, Any]) -> None:
    _refuse_unknown_keys(path, "", config, ServeDeploySchema)
    _refuse_unknown_keys(path, "http_options.", _mapping(path, "http_options", config), HTTPOptionsSchema)
    for application in config["applications"]:
        _refuse_unknown_keys(path, "applications.", application, ServeApplicationSchema)
    try:
        settings_of(config)
        ServeDeploySchema.model_validate(config)
    except SettingsError as error:
        raise ConfigError(f"{path}: args: {error}") from None
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ConfigError(f"{path}: " + "; ".join(faults)) from None


def _refuse_unknown_keys(path: Path, prefix: str, values: dict[str, Any], schema: type[BaseModel]) -> None:
    """Serve passes over keys that it does not know, so that `arg:` would deploy with every default."""
    if unknown := [f"{prefix}{key}={values[key]!r}" for key in values if key not in schema.model_fields]:
        raise ConfigError(f"{path}: unknown key: {', '.join(unknown)}; known: {', '.join(schema.model_fields)}")

"""Adapters as they lie on disk: found, listed, and looked through before the engine sees one.

The engine loads an adapter in its own loop, between two steps, and says little of what is wrong with one. So it is
given only what was found good here, and what has just been read: the load then finds it in memory.

Blocking; called in threads.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from slo.adapters import is_adapter_name

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
"""PEFT's layout. Its older `.bin` files are pickles, and are not read."""
MAX_CONFIG_BYTES: Final = 2**20
_READ_BYTES: Final = 2**22
_READS_HIDDEN_STATE: Final = tuple(f".{name}_proj.lora_A.weight" for name in ("q", "k", "v", "gate", "up"))
"""Endings of weights whose second size is the model's hidden size. vLLM 0.32 takes one of a smaller model without a
word, and computes with a part of its own weights."""

Stamp = tuple[int, int, int] | None


class BrokenAdapter(Exception):
    """The adapter cannot be used; the message says why, without paths."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """One version of an adapter.

    Attributes:
        path: without symbolic links.
        stamps: of its two files: another when one was written or replaced.
    """

    name: str
    path: Path
    stamps: tuple[Stamp, Stamp]


def list_adapters(directory: Path) -> tuple[str, ...]:
    """The names of the subdirectories that may be adapters, in order. Raises OSError."""
    with os.scandir(directory) as entries:
        return tuple(sorted(entry.name for entry in entries if is_adapter_name(entry.name) and entry.is_dir()))


def find_adapter(directory: Path, name: str) -> AdapterFiles | None:
    """What lies under `name` now; None: nothing does. Raises OSError: that cannot be told."""
    if not is_adapter_name(name):
        return None
    try:
        path = (directory / name).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # the last: links that go in circles
        return None
    return (
        AdapterFiles(name, path, (_stamp(path / CONFIG_FILE), _stamp(path / WEIGHTS_FILE))) if path.is_dir() else None
    )


def read_config(files: AdapterFiles) -> dict[str, Any]:
    """The adapter's configuration. Raises BrokenAdapter or OSError."""
    path = files.path / CONFIG_FILE
    if not path.is_file():
        raise BrokenAdapter(f"it has no {CONFIG_FILE}")
    with path.open("rb") as file:
        raw = file.read(MAX_CONFIG_BYTES + 1)
    try:
        config = json.loads(raw) if len(raw) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BrokenAdapter(f"{CONFIG_FILE} is no JSON object")
    if config.get("peft_type") != "LORA":
        raise BrokenAdapter(f"{CONFIG_FILE}: peft_type is not LORA")
    return config


def read_through(files: AdapterFiles, max_rank: int, hidden_size: int) -> None:
    """Looks at each weight's shape and reads the whole file. Raises BrokenAdapter or OSError.

    Args:
        max_rank: of a weight; the engine's `max_lora_rank`.
        hidden_size: of the model.
    """
    path = files.path / WEIGHTS_FILE
    if not path.is_file():
        raise BrokenAdapter(f"it has no {WEIGHTS_FILE}")
    try:
        with safe_open(path, framework="numpy") as weights:
            shapes = {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118  # no dict
    except SafetensorError:
        raise BrokenAdapter(f"{WEIGHTS_FILE} is damaged") from None
    _check_shapes(shapes, max_rank, hidden_size)
    with path.open("rb", buffering=0) as file:
        while file.read(_READ_BYTES):
            pass


def _check_shapes(shapes: dict[str, tuple[int, ...]], max_rank: int, hidden_size: int) -> None:
    if not shapes:
        raise BrokenAdapter(f"{WEIGHTS_FILE} is empty")
    for key, shape in shapes.items():
        if key.endswith(".lora_A.weight") and len(shape) == 2 and shape[0] > max_rank:
            raise BrokenAdapter(f"a weight has rank {shape[0]}, and max_lora_rank is {max_rank}")
        if key.endswith(_READS_HIDDEN_STATE) and (len(shape) != 2 or shape[1] != hidden_size):
            raise BrokenAdapter(f"it is made for another model: {shape} for a hidden size of {hidden_size}")


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns

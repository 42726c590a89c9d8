import logging
import sys
from collections.abc import Iterator

import pytest

from slo.logs import ROOT, configure_logging


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Our root logger as in a fresh process; put back afterwards."""
    logger = logging.getLogger(ROOT)
    before = (logger.level, logger.propagate, list(logger.handlers))
    logger.handlers.clear()
    logger.propagate = True  # or pytest would put handlers of its own on it
    yield logger
    logger.level, logger.propagate, logger.handlers[:] = before


def test_configure_logging_adds_one_handler_when_called_twice(logger: logging.Logger) -> None:
    configure_logging()
    configure_logging(logging.DEBUG)
    (handler,) = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.__stderr__
    assert (logger.level, logger.propagate) == (logging.DEBUG, False)

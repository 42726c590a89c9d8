import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class RecordLine:
    """What a request's record said when it was closed."""

    request_id: str
    route: str
    priority: str
    tenant: str
    """Quoted, or none."""
    reason: str
    outcome: str


class RecordLines(logging.Handler):
    """The lines of closed records, read from the ingress's log."""

    _FORM = re.compile(
        r"request_id=(\S+) route=(\S+) class=(\S+) tenant=(\S+) reason='([^']*)' outcome=(\S+) "
        r"ttft_ms=\S+ tbt_max_ms=\S+ e2e_ms=\S+"
    )

    def __init__(self) -> None:
        super().__init__()
        self.all_text: list[str] = []
        self.closed: list[RecordLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all_text.append(self.format(record))
        if found := self._FORM.fullmatch(record.getMessage()):
            self.closed.append(RecordLine(*found.groups()))

    @property
    def outcomes(self) -> list[str]:
        return [line.outcome for line in self.closed]


@pytest.fixture
def records() -> Iterator[RecordLines]:
    logger = logging.getLogger("expresslane.ingress")
    handler, level = RecordLines(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)

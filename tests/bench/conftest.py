from collections.abc import Iterator

import pytest

from tests.bench.scripted_server import ScriptedServer, running_server


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A real server on a port of its own, that answers as a test tells it."""
    with running_server() as running:
        yield running

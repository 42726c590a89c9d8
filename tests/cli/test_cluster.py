from __future__ import annotations

import socket

import pytest

from cli import cluster
from cli.cluster import free_port


def test_free_port_is_none_that_is_given_to_whoever_asks_for_any() -> None:
    """HAProxy once found its port taken by a connection that had come in the seconds before its start."""
    assert all(20_000 <= free_port() < 30_000 for _ in range(50))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_free_port_is_none_that_is_listened_on(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = free_port()
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen()
        monkeypatch.setattr(cluster, "FREE_PORTS", [listener.getsockname()[1], other])
        assert {free_port() for _ in range(20)} == {other}

from __future__ import annotations

from typing import Any

import pytest

from slo.settings import BatchSettings, SettingsError, parse_settings


def test_defaults_are_openais_limits_and_three_quarters_of_the_slots() -> None:
    batch = BatchSettings()
    assert (batch.max_file_bytes, batch.max_lines) == (200_000_000, 50_000)
    assert batch.max_lines_in_flight(slots=64, num_replicas=2) == 96


@pytest.mark.parametrize(
    ("values", "slots", "num_replicas", "expected"),
    [
        ({}, 1, 1, 1),
        ({}, 8, 0, 6),
        ({"in_flight_ratio": 1}, 8, 3, 24),
        ({"max_in_flight": 3}, 8, 2, 6),
        ({"max_in_flight": 100}, 8, 1, 100),
    ],
)
def test_lines_in_flight_grow_with_replicas_and_one_is_always_allowed(
    values: dict[str, Any], slots: int, num_replicas: int, expected: int
) -> None:
    assert BatchSettings.model_validate(values).max_lines_in_flight(slots, num_replicas) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path": "relative.sqlite3"}, "batch.path='relative.sqlite3': "),
        ({"path": "/a/directory/"}, "batch.path='/a/directory/': "),
        ({"path": "/a", "database_url": "postgresql://b"}, "batch: path='/a' and database_url: "),
        ({"in_flight_ratio": 0}, "batch.in_flight_ratio=0: "),
        ({"in_flight_ratio": 1.1}, "batch.in_flight_ratio=1.1: "),
        ({"max_lines": 0}, "batch.max_lines=0: "),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"batch": values})
    assert str(raised.value).startswith(message)


def test_address_of_a_database_is_not_told_for_it_may_hold_a_password() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"batch": {"database_url": "mysql://me:secret@host/name"}})
    assert str(raised.value).startswith("batch.database_url: ")
    assert "secret" not in str(raised.value)

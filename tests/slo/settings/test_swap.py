from typing import Any

import pytest
from pydantic import ValidationError

from slo.settings import SwapSettings
from slo.settings.swap import HostMemoryError, check_host_memory

GIB = 2**30
MIB = 2**20


def test_swap_defaults_are_the_design_tables() -> None:
    assert SwapSettings().model_dump() == {
        "host_bytes": None,
        "max_move_ms": 50,
        "over_limit": "queue",
        "directory": None,
        "directory_bytes": None,
    }


def test_swap_is_off_when_host_bytes_is_zero() -> None:
    assert SwapSettings(host_bytes=0).resolve(cpu=False, available_bytes=100 * GIB).host_bytes == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"host_bytes": -1}, "host_bytes"),
        ({"max_move_ms": 0}, "max_move_ms"),
        ({"over_limit": "drop"}, "over_limit"),
        ({"directory": "", "directory_bytes": 1}, "directory"),
        ({"directory": "swap", "directory_bytes": 1}, "must be an absolute path"),
        ({"directory": "/swap", "directory_bytes": 0}, "directory_bytes"),
        ({"directory": "/swap"}, "directory='/swap' and directory_bytes=None belong together"),
        ({"directory_bytes": 5}, "directory=None and directory_bytes=5 belong together"),
        ({"host_bytes": 0, "directory": "/swap", "directory_bytes": 5}, "directory='/swap' with host_bytes=0"),
        ({"host_gib": 5}, "host_gib"),
    ],
)
def test_swap_is_refused_when_a_value_is_out_of_range_or_contradicts(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SwapSettings.model_validate(values)


@pytest.mark.parametrize(
    ("host_bytes", "cpu", "available_bytes", "expected"),
    [
        (None, False, 100 * GIB, 32 * GIB),
        (None, False, 20 * GIB, 10 * GIB),
        (None, True, 100 * GIB, 256 * MIB),
        (None, True, 300 * MIB, 150 * MIB),
        (None, True, 0, 0),
        (20 * GIB, False, 20 * GIB, 20 * GIB),
        (5, True, 100 * GIB, 5),
        (0, True, 0, 0),
    ],
)
def test_resolved_host_bytes_are_those_set_or_a_default_that_the_machine_can_spare(
    host_bytes: int | None, cpu: bool, available_bytes: int, expected: int
) -> None:
    settings = SwapSettings(host_bytes=host_bytes, max_move_ms=20)
    resolved = settings.resolve(cpu, available_bytes)
    assert resolved.host_bytes == expected
    assert resolved.max_move_ms == 20
    assert settings.host_bytes == host_bytes


def test_host_bytes_that_the_machine_has_not_are_refused_with_key_value_and_what_there_is() -> None:
    with pytest.raises(HostMemoryError) as caught:
        SwapSettings(host_bytes=32 * GIB).resolve(cpu=False, available_bytes=16 * GIB)
    assert f"swap.host_bytes={32 * GIB} (32.0 GiB)" in str(caught.value)
    assert f"{16 * GIB} bytes (16.0 GiB)" in str(caught.value)


def test_check_host_memory_allows_all_there_is() -> None:
    check_host_memory(GIB, GIB)
    with pytest.raises(HostMemoryError):
        check_host_memory(GIB + 1, GIB)


def test_swap_settings_cross_processes_as_plain_values() -> None:
    settings = SwapSettings(host_bytes=GIB, over_limit="recompute", directory="/swap", directory_bytes=GIB)
    plain = settings.as_plain()
    assert all(isinstance(value, int | float | str) for value in plain.values())
    assert SwapSettings(**plain) == settings


def test_swap_is_off_with_its_directory_where_there_is_no_memory_to_spare() -> None:
    resolved = SwapSettings(directory="/swap", directory_bytes=GIB).resolve(cpu=True, available_bytes=0)
    assert (resolved.host_bytes, resolved.directory, resolved.directory_bytes) == (0, None, None)
    assert SwapSettings(**resolved.as_plain()) == resolved

from __future__ import annotations

import pytest

from slo.adapters import is_adapter_name


@pytest.mark.parametrize("name", ["a", "red", "Red-2.1_b", "9", "a" * 128])
def test_adapter_name_is_one_part_of_a_path(name: str) -> None:
    assert is_adapter_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".red", "-red", "a/b", "a\\b", "a b", "a\n", "a\x00", "röt", "a" * 129, None, 7, ["a"]]
)
def test_other_values_are_no_adapter_names(name: object) -> None:
    assert not is_adapter_name(name)

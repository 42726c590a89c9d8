import pytest
from pydantic import ValidationError

from slo.settings import SwapSettings


def test_swap_defaults_are_the_design_tables() -> None:
    assert SwapSettings().model_dump() == {"host_bytes": 32 * 1024**3, "max_move_ms": 50}


def test_swap_is_off_when_host_bytes_is_zero() -> None:
    assert SwapSettings(host_bytes=0).host_bytes == 0


@pytest.mark.parametrize(("key", "value"), [("host_bytes", -1), ("max_move_ms", 0)])
def test_swap_is_refused_when_a_value_is_out_of_range(key: str, value: int) -> None:
    with pytest.raises(ValidationError, match=key):
        SwapSettings.model_validate({key: value})

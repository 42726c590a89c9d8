import pytest
from pydantic import ValidationError

from slo.settings import ControllerSettings, Settings, parse_settings


def test_controller_defaults() -> None:
    assert ControllerSettings().model_dump() == {
        "answer_timeout_s": 2,
        "serve_timeout_s": 5,
        "stuck_after_s": 60,
        "dashboard_url": None,
        "num_cpus": 0.1,
        "on_head": True,
    }


def test_controller_is_a_group_of_the_settings() -> None:
    assert Settings().controller == ControllerSettings()
    assert parse_settings({"controller": {"stuck_after_s": 5}}).controller.stuck_after_s == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("answer_timeout_s", 0),
        ("serve_timeout_s", 0),
        ("stuck_after_s", -1),
        ("num_cpus", -0.1),
        ("dashboard_url", "head:8265"),
        ("dashboard_url", "ray://head:10001"),
    ],
)
def test_controller_is_refused_when_a_value_is_out_of_range(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        ControllerSettings.model_validate({key: value})


@pytest.mark.parametrize("url", ["http://127.0.0.1:8265", "https://ray.example/"])
def test_dashboard_url_is_taken_with_its_scheme(url: str) -> None:
    assert ControllerSettings(dashboard_url=url).dashboard_url == url

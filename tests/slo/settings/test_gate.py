from typing import Any

import pytest

from slo.priority import PriorityClass
from slo.settings import AdmissionSettings, Settings, SettingsError, TenantSettings, parse_settings


def test_admission_waits_longer_the_less_urgent_a_class_is() -> None:
    settings = AdmissionSettings()
    assert [settings.of(c).queue_timeout_s for c in PriorityClass] == [2, 30, 300]
    assert all(settings.of(c).max_in_flight is None and settings.of(c).max_queued is None for c in PriorityClass)


def test_admission_keeps_the_defaults_of_what_is_not_set_in_a_class() -> None:
    settings = parse_settings({"admission": {"p2": {"max_queued": 10}}}).admission
    assert (settings.p2.max_queued, settings.p2.queue_timeout_s) == (10, 300)


def test_tenants_are_open_unless_a_file_is_set() -> None:
    assert Settings().tenants == TenantSettings()
    assert TenantSettings().keys_file is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"admission": {"p0": {"queue_timeout_s": 0}}}, "admission.p0.queue_timeout_s=0: "),
        ({"admission": {"p1": {"max_in_flight": 0}}}, "admission.p1.max_in_flight=0: "),
        ({"admission": {"p1": {"max_queued": -1}}}, "admission.p1.max_queued=-1: "),
        ({"admission": {"unshared_ratio": 0}}, "admission.unshared_ratio=0: "),
        ({"admission": {"unshared_ratio": 1.1}}, "admission.unshared_ratio=1.1: "),
        ({"admission": {"max_wait_ratio": 0}}, "admission.max_wait_ratio=0: "),
        ({"admission": {"ahead_ratio": -0.1}}, "admission.ahead_ratio=-0.1: "),
        ({"admission": {"max_retry_after_s": 0.5}}, "admission.max_retry_after_s=0.5: "),
        ({"tenants": {"keys_file": "keys.yaml"}}, "tenants.keys_file='keys.yaml': must be an absolute path"),
        ({"tenants": {"above_class": "raise"}}, "tenants.above_class='raise': "),
        ({"tenants": {"reload_period_s": 0}}, "tenants.reload_period_s=0: "),
    ],
)
def test_gate_settings_are_refused_with_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(values)
    assert str(raised.value).startswith(message)


def test_operators_key_is_not_shown_when_it_was_put_in_the_place_of_its_hash() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"tenants": {"operator_key_sha256": "xl-a-secret"}})
    assert str(raised.value).startswith("tenants.operator_key_sha256: ")
    assert "xl-a-secret" not in str(raised.value)

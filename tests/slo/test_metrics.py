import re

from slo import metrics

NAMES = {key: value for key, value in vars(metrics).items() if key.isupper() and not key.startswith("LABEL")}


def test_metric_names_are_namespaced_with_a_base_unit_and_distinct() -> None:
    names = [value for key, value in NAMES.items() if key != "NAMESPACE"]
    assert names
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"expresslane_[a-z0-9_]+_(seconds|bytes|tokens|total|ratio)", name) for name in names)

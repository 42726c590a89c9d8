from bench.gate_claims import all_targets
from bench.scenario import Targets
from slo.settings import parse_settings


def test_targets_of_a_slow_machine_are_ones_that_the_product_takes() -> None:
    told = parse_settings(
        {"scheduler": {"targets": all_targets(Targets(ttft_ms=3265.4, tbt_ms=212))}}
    ).scheduler.targets
    assert (told.p0.ttft_p99_ms, told.p1.ttft_p99_ms, told.p1.tbt_p99_ms, told.p2.tbt_p99_ms) == (
        3265.4,
        16327,
        1060,
        2120,
    )

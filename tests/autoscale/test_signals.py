import math
from dataclasses import replace

import pytest

from autoscale import signals
from autoscale.signals import Bound, Side, Signal, Timing, duration_text, number_text
from autoscale.view import ClassView, FleetView
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass
TIMING = Timing(period_s=10, window_s=30)
NOTHING = FleetView(now_s=0, window_s=30, classes={}, replicas=None, is_complete=False)
ALL = (
    *signals.TTFT_P99.values(),
    *signals.TBT_P99.values(),
    signals.PREEMPTIONS_PER_MINUTE,
    signals.GPU_UTILISATION,
    signals.KV_HIT_RATIO,
    signals.MEAN_BATCH_SIZE,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (10, "10s"),
        (0.5, "500ms"),
        (39.999, "39s999ms"),
        (290, "4m50s"),
        (3600, "1h"),
        (3661.001, "1h1m1s1ms"),
    ],
)
def test_duration_text_is_prometheus(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2.0, "2"), (10, "10"), (0.04, "0.04"), (0.1 + 0.2, "0.30000000000000004")]
)
def test_number_text_is_exact(value: float, text: str) -> None:
    assert number_text(value) == text
    assert float(text) == value


@pytest.mark.parametrize("signal", ALL, ids=lambda s: s.noun)
def test_signal_has_no_value_when_nothing_is_known(signal: Signal) -> None:
    assert signal.read(NOTHING) is None


@pytest.mark.parametrize("signal", [*ALL, signals.NUM_WAITING], ids=lambda s: s.noun)
def test_signal_has_no_placeholder_left_in_its_promql(signal: Signal) -> None:
    assert "$" not in signal.promql(TIMING)
    assert ("39s999ms" in signal.promql(TIMING)) == ("$range" in signal.expression)


def test_signal_reads_its_own_class() -> None:
    view = replace(
        NOTHING,
        classes={P0: ClassView(ttft_p99_s=0.1, tbt_p99_s=0.2, num_waiting=3), P2: ClassView(num_waiting=4)},
    )
    assert [signals.TTFT_P99[p].read(view) for p in PriorityClass] == [0.1, None, None]
    assert [signals.TBT_P99[p].read(view) for p in PriorityClass] == [0.2, None, None]
    assert signals.NUM_WAITING.read(view) == 7


def test_signal_reads_the_fleet() -> None:
    view = replace(NOTHING, preemptions_per_minute=1, gpu_utilisation_ratio=0.2, kv_hit_ratio=0.3, mean_batch_size=4.5)
    assert [signal.read(view) for signal in ALL[-4:]] == [1, 0.2, 0.3, 4.5]


@pytest.mark.parametrize(
    ("side", "value", "is_crossed"),
    [
        (Side.ABOVE, 0.5, False),
        (Side.ABOVE, math.nextafter(0.5, 1), True),
        (Side.ABOVE, 0.1, False),
        (Side.ABOVE, None, False),
        (Side.BELOW, 0.5, False),
        (Side.BELOW, math.nextafter(0.5, 0), True),
        (Side.BELOW, 0.0, True),
        (Side.BELOW, None, False),
    ],
)
def test_bound_is_crossed_beyond_its_limit_only(side: Side, value: float | None, is_crossed: bool) -> None:
    bound = Bound(signals.KV_HIT_RATIO, side, 0.5)
    assert bound.is_crossed(replace(NOTHING, kv_hit_ratio=value)) is is_crossed


@pytest.mark.parametrize(("side", "text"), [(Side.ABOVE, " > 0.5"), (Side.BELOW, " < 0.5")])
def test_bound_is_a_comparison_in_promql(side: Side, text: str) -> None:
    bound = Bound(signals.GPU_UTILISATION, side, 0.5)
    assert bound.promql(TIMING) == "max(expresslane_gpu_utilisation_ratio)" + text


def test_timing_reaches_over_one_window_of_scrapes() -> None:
    assert [Timing(p, w).range_text for p, w in ((10, 30), (0.5, 1.5), (60, 60))] == [
        "39s999ms",
        "1s999ms",
        "1m59s999ms",
    ]

import pytest

from sim.figures import figures_of, is_good
from sim.request import Arrival, Track
from sim.token_log import TokenLog
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings.targets import ClassTargets, LatencyTargets

P0, P1, P2 = PriorityClass
TARGETS = LatencyTargets(ttft_p99_ms=100, tbt_p99_ms=20)


@pytest.mark.parametrize(
    ("ttft_s", "num_late", "outcome", "good"),
    [
        (0.1, 0, Outcome.COMPLETED, True),
        (0.101, 0, Outcome.COMPLETED, False),
        (0.05, 2, Outcome.COMPLETED, True),
        (0.05, 3, Outcome.COMPLETED, False),
        (0.05, 0, Outcome.SHED, False),
    ],
)
def test_good_request_was_answered_with_every_target_held(
    ttft_s: float, num_late: int, outcome: Outcome, good: bool
) -> None:
    track = Track(Arrival(0, 0.0, P0, 1, 201), ttft_s, 5.0, 201, num_late, 0, 5.0, outcome)
    assert is_good(track, TARGETS) is good


def test_shed_request_is_a_miss() -> None:
    log = TokenLog(dict.fromkeys(PriorityClass, 0.02))
    for number in range(4):
        track = log.begin(Arrival(number, 0.0, P0, 10, 1))
        if number:
            log.token(track, 0.05)
            log.end(track, 0.05, Outcome.COMPLETED)
        else:
            log.end(track, 0.0, Outcome.SHED)
    figures = figures_of(log, ClassTargets(), 2.0, busy_s=1.0, replica_s=4.0, num_steps=3)
    (of_class,) = figures.classes
    assert of_class.attainment == of_class.ttft_attainment == 0.75
    assert of_class.holds is False
    assert of_class.goodput_per_s == figures.goodput_per_s == 1.5
    assert of_class.outcomes == {Outcome.COMPLETED: 3, Outcome.SHED: 1}
    assert figures.busy_ratio == 0.25
    assert figures.tokens_per_s == 3 * 11 / 2


def test_class_without_a_promise_is_left_out_of_goodput() -> None:
    log = TokenLog(dict.fromkeys(PriorityClass, 0.02))
    track = log.begin(Arrival(0, 0.0, P2, 10, 1))
    log.token(track, 50.0)
    log.end(track, 50.0, Outcome.COMPLETED)
    figures = figures_of(log, ClassTargets(), 2.0, busy_s=1.0, replica_s=4.0, num_steps=3)
    assert figures.classes[0].goodput_per_s is None
    assert figures.goodput_per_s == 0.0
    assert figures.holds


def test_class_holds_when_99_of_100_are_within_each_target() -> None:
    for num_late, holds in ((1, True), (2, False)):
        log = TokenLog(dict.fromkeys(PriorityClass, 0.02))
        for number in range(100):
            track = log.begin(Arrival(number, 0.0, P0, 10, 1))
            log.token(track, 0.2 if number < num_late else 0.05)
            log.end(track, 0.2, Outcome.COMPLETED)
        assert figures_of(log, ClassTargets(), 2.0, 1.0, 4.0, 3).holds is holds

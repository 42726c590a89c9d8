from app.gate.steady_clock import MAX_STEP_S, SteadyClock
from tests.app.gate.desk import FakeClock


def test_clock_runs_with_the_one_below_it() -> None:
    below = FakeClock()
    clock = SteadyClock(below)
    assert clock.read(True) == 0
    below.now_s += 1.5
    assert clock.read(True) == 1.5
    assert clock.read(True) == 1.5


def test_clock_leaves_a_jump_out_while_it_is_watched() -> None:
    below = FakeClock()
    clock = SteadyClock(below)
    below.now_s += 3600
    assert clock.read(is_watched=True) == MAX_STEP_S
    below.now_s += 1
    assert clock.read(is_watched=True) == MAX_STEP_S + 1


def test_clock_takes_long_steps_while_nobody_watches_it() -> None:
    below = FakeClock()
    clock = SteadyClock(below)
    below.now_s += 3600
    assert clock.read(is_watched=False) == 3600


def test_clock_never_goes_back() -> None:
    below = FakeClock()
    clock = SteadyClock(below)
    below.now_s += 10
    assert clock.read(False) == 10
    below.now_s -= 500
    assert clock.read(False) == 10
    below.now_s += 2
    assert clock.read(False) == 12

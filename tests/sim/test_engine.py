import pytest

from sim.request import Arrival
from sim.scenario import Contender
from slo.settings.scheduling import SchedulerSettings
from slo.settings.swap import SwapSettings
from tests.sim.scenes import P0, P2, build, new_log, play, random_arrivals


def test_engine_takes_the_time_of_each_step() -> None:
    log = new_log()
    play(build(log), log, [Arrival(0, 1.0, P2, 100, 3)])
    (track,) = log.tracks
    assert track.first_s == pytest.approx(1.0 + 0.010 + 100 * 1e-4)
    second_s = 0.010 + 0.001 + 101 * 1e-6
    third_s = 0.010 + 0.001 + 102 * 1e-6
    assert track.ended_s == pytest.approx(track.first_s + second_s + third_s)


def test_arrival_waits_for_the_step_in_flight_and_another_one_when_scheduling_is_asynchronous() -> None:
    waits = []
    for is_async in (False, True):
        log = new_log()
        play(build(log, is_async=is_async), log, [Arrival(0, 0.0, P2, 100, 50), Arrival(1, 0.1, P0, 1, 1)])
        waits.append(log.tracks[1].ttft_s)
    assert waits[0] is not None
    assert waits[1] == pytest.approx(waits[0] + 0.011, abs=0.001)


def test_chunked_prompt_gives_one_first_token() -> None:
    log = new_log()
    engine = build(log, Contender.FCFS, max_step_tokens=64)
    play(engine, log, [Arrival(0, 0.0, P2, 200, 2)])
    assert log.tracks[0].first_s == pytest.approx(4 * 0.010 + 200 * 1e-4)
    assert log.tracks[0].num_tokens == 2


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("swap", [None, SwapSettings(host_bytes=1 << 20)], ids=["recompute", "swap"])
def test_every_request_gets_all_its_tokens_when_memory_is_short(is_async: bool, swap: SwapSettings | None) -> None:
    arrivals = random_arrivals(seed=1, count=30, rate_per_s=20)
    log = new_log()
    engine = build(log, settings=SchedulerSettings(), num_blocks=40, is_async=is_async, swap=swap)
    play(engine, log, arrivals)
    assert [track.num_tokens for track in log.tracks] == [arrival.output_tokens for arrival in arrivals]
    assert sum(track.num_preempted for track in log.tracks) > 0
    if swap is not None:
        assert engine.scheduler.preemption_counts.num_swapped > 0


def test_urgent_request_overtakes_batch_in_ours_alone() -> None:
    batch = [Arrival(i, 0.0, P2, 50, 400) for i in range(8)]
    ttft_s = {}
    for contender in Contender:
        log = new_log()
        play(build(log, contender), log, [*batch, Arrival(8, 1.0, P0, 20, 5)])
        ttft_s[contender] = log.tracks[8].ttft_s or 0.0
    assert ttft_s[Contender.EXPRESSLANE] < 0.05
    assert min(seconds for contender, seconds in ttft_s.items() if contender is not Contender.EXPRESSLANE) > 1.0


def test_stop_tells_who_was_under_way_with_the_tokens_that_came() -> None:
    log = new_log()
    engine = build(log)
    engine.add(log.begin(Arrival(0, 0.0, P2, 50, 400)), 0.0)
    engine.advance()
    (lost,) = engine.stop(1.0)
    assert lost.num_tokens == pytest.approx((1.0 - (lost.first_s or 0.0)) / 0.0115, abs=5)
    assert engine.next_event_s == float("inf")


def test_shared_prefix_is_read_once() -> None:
    log = new_log()
    engine = build(log)
    play(engine, log, [Arrival(i, 10.0 * i, P2, 320, 2, shared_tokens=300, shared_id=1) for i in range(2)])
    first, second = (track.ttft_s or 0.0 for track in log.tracks)
    assert second < first - 280 * 1e-4

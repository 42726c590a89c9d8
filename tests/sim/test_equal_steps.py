import pytest

from sim.engine import SimEngine
from sim.request import Arrival
from sim.scenario import Contender
from slo.settings.scheduling import SchedulerSettings
from slo.settings.swap import SwapSettings
from tests.sim.scenes import P2, TABLE_ALONE, build, new_log, play, random_arrivals

SWAP = SwapSettings(host_bytes=1 << 20)
SCENES = {
    "ours": (Contender.EXPRESSLANE, {}),
    "ours-slots-short": (Contender.EXPRESSLANE, {"max_num_seqs": 3}),
    "ours-kv-short": (Contender.EXPRESSLANE, {"num_blocks": 40}),
    "ours-kv-short-swap": (Contender.EXPRESSLANE, {"num_blocks": 40, "swap": SWAP}),
    "priority-kv-short": (Contender.PRIORITY, {"num_blocks": 40}),
    "fcfs-slots-short": (Contender.FCFS, {"max_num_seqs": 3}),
    "static": (Contender.STATIC, {}),
}


@pytest.mark.parametrize(("contender", "shape"), SCENES.values(), ids=SCENES.keys())
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_runs_of_equal_steps_end_as_step_by_step(
    contender: Contender, is_async: bool, shape: dict[str, object]
) -> None:
    """Every token at the same time, the same preemptions, and a scheduler that holds the same."""
    arrivals = random_arrivals(seed=3, count=25, rate_per_s=6)
    logs, engines = [], []
    for is_stepwise in (True, False):
        log = new_log()
        engine = build(log, contender, is_stepwise=is_stepwise, is_async=is_async, **shape)
        play(engine, log, arrivals)
        logs.append(log)
        engines.append(engine)
    stepwise, runs = ([_seen(track) for track in log.tracks] for log in logs)
    assert runs == stepwise
    assert engines[1].num_steps == engines[0].num_steps
    assert engines[1].busy_s == pytest.approx(engines[0].busy_s)
    assert _free_blocks(engines[1]) == _free_blocks(engines[0])


def test_what_the_scheduler_learns_from_runs_changes_little() -> None:
    arrivals = random_arrivals(seed=5, count=40, rate_per_s=6)
    ttfts = []
    for is_stepwise in (True, False):
        log = new_log()
        play(build(log, settings=SchedulerSettings(), is_stepwise=is_stepwise), log, arrivals)
        ttfts.append(sum(track.ttft_s or 0.0 for track in log.tracks) / len(log.tracks))
    assert ttfts[1] == pytest.approx(ttfts[0], rel=0.02)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_long_answer_alone_takes_few_events_and_every_step(is_async: bool) -> None:
    log = new_log()
    engine = build(log, settings=TABLE_ALONE, is_async=is_async)
    engine.add(log.begin(Arrival(0, 0.0, P2, 20, 500)), 0.0)
    num_events = 0
    while engine.tracks:
        engine.advance()
        num_events += 1
    assert num_events < 10
    assert engine.num_steps == pytest.approx(500, abs=1)
    assert log.tracks[0].num_tokens == 500


def _seen(track: object) -> tuple[object, ...]:
    first_s, last_s = track.first_s, track.last_s  # type: ignore[attr-defined]
    return (
        pytest.approx(first_s, abs=1e-6),
        pytest.approx(last_s, abs=1e-6),
        track.num_tokens,  # type: ignore[attr-defined]
        track.num_late_gaps,  # type: ignore[attr-defined]
        track.num_preempted,  # type: ignore[attr-defined]
    )


def _free_blocks(engine: SimEngine) -> int:
    return engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

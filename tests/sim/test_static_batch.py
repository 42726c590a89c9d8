from sim.request import Arrival
from sim.scenario import Contender
from tests.sim.scenes import P2, build, new_log, play


def test_new_batch_begins_when_the_last_request_of_the_one_before_is_done() -> None:
    log = new_log()
    sizes = [(0.0, 5), (0.001, 50), (0.002, 5), (0.003, 5)]
    play(
        build(log, Contender.STATIC, max_num_seqs=2),
        log,
        [Arrival(i, at_s, P2, 10, output) for i, (at_s, output) in enumerate(sizes)],
    )
    first, second, third, fourth = log.tracks
    assert (first.ended_s or 0.0) < (second.first_s or 0.0)
    assert (second.ended_s or 0.0) < (fourth.first_s or 0.0)
    assert (third.first_s or 0.0) == (second.first_s or 0.0)

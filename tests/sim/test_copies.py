import pytest

from replicas.kv_swap.moves import Bandwidths
from sim.copies import SETUP_S, TimedCopier


def test_copies_of_one_direction_follow_each_other_and_those_of_the_other_pass() -> None:
    copier = TimedCopier(1000, Bandwidths(1e6, 2e6), now_s=1.0)
    copier.start_out(1, range(10), range(10))
    copier.start_out(2, range(10), range(10))
    copier.start_in(3, range(10), range(10))
    ended = []
    for now_s in (1.004 + SETUP_S, 1.006 + SETUP_S, 1.009 + SETUP_S, 1.011 + SETUP_S, 1.019, 1.021 + 2 * SETUP_S):
        copier.now_s = now_s
        ended.append([move.move_id for move in copier.poll()])
    assert ended == [[], [3], [], [1], [], [2]]


def test_copy_tells_what_it_took_without_its_wait() -> None:
    copier = TimedCopier(1000, Bandwidths(1e6, 2e6))
    copier.start_out(1, range(10), range(10))
    copier.start_out(2, range(20), range(20))
    copier.now_s = 1.0
    first, second = copier.poll()
    assert (first.num_bytes, second.num_bytes) == (10_000, 20_000)
    assert second.seconds == pytest.approx(SETUP_S + 0.020)
    assert copier.poll() == []

import numpy as np
import pytest

from sim.request import Arrival
from sim.token_log import TokenLog, weighted_percentiles
from slo.outcome import Outcome
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def test_run_is_noted_as_its_tokens_would_be_one_by_one() -> None:
    times = np.array([1.0, 1.01, 1.1, 1.15])
    seen = []
    for as_run in (False, True):
        log = TokenLog({P0: 0.06, P1: 0.02, P2: None})
        tracks = [log.begin(Arrival(i, 0.5, c, 10, 10)) for i, c in enumerate((P0, P0, P1, P2))]
        log.token(tracks[0], 0.9)
        if as_run:
            log.run(tracks, times)
        else:
            for time_s in times:
                for track in tracks:
                    log.token(track, float(time_s))
        gaps = {c: sorted(np.repeat(log.gaps_s(c)[0], log.gaps_s(c)[1].astype(int))) for c in PriorityClass}
        seen.append(([(t.first_s, t.last_s, t.num_tokens, t.num_late_gaps) for t in tracks], gaps))
    assert seen[0][0] == seen[1][0]
    for priority in PriorityClass:
        assert seen[0][1][priority] == pytest.approx(seen[1][1][priority])
    assert [late for _, _, _, late in seen[0][0]] == [2, 1, 2, 0]


def test_front_comes_on_top_of_first_token_and_end_and_not_of_gaps() -> None:
    log = TokenLog(dict.fromkeys(PriorityClass, None), front_s=0.25)
    track = log.begin(Arrival(0, 1.0, P0, 10, 2))
    log.token(track, 2.0)
    log.token(track, 2.5)
    log.end(track, 2.5, Outcome.COMPLETED)
    assert track.ttft_s == 1.25
    assert track.ended_s == 2.75
    assert log.gaps_s(P0)[0].tolist() == [0.5]


def test_request_cannot_end_twice() -> None:
    log = TokenLog(dict.fromkeys(PriorityClass, None))
    track = log.begin(Arrival(0, 1.0, P0, 10, 2))
    log.end(track, 2.0, Outcome.COMPLETED)
    with pytest.raises(AssertionError, match="r0 ends twice"):
        log.end(track, 2.0, Outcome.SHED)


def test_weighted_percentiles_are_those_of_the_values_repeated() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0])
    assert weighted_percentiles(values, weights, (50, 98, 98.5, 99, 100)) == [1.0, 1.0, 2.0, 2.0, 3.0]

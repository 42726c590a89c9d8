import math

from sim.fleet import Fleet
from sim.replica import Replica
from sim.request import Arrival
from sim.router import InTurn
from sim.token_log import TokenLog
from slo.outcome import Outcome
from tests.sim.scenes import P2, build, new_log


def make_fleet(num_replicas: int) -> tuple[Fleet, TokenLog]:
    log = new_log()
    return Fleet([Replica(i, build(log)) for i in range(num_replicas)], InTurn(), log), log


def long_ones(count: int) -> list[Arrival]:
    return [Arrival(i, 0.0, P2, 20, 200) for i in range(count)]


def test_every_request_ends_once_and_in_time_order() -> None:
    fleet, log = make_fleet(3)
    fleet.run(Arrival(i, 0.05 * i, P2, 20, 10 + i) for i in range(20))
    assert all(track.outcome is Outcome.COMPLETED for track in log.tracks)
    assert log.num_open == 0
    assert fleet.now_s == max(track.ended_s or 0.0 for track in log.tracks)


def test_broken_streams_go_on_elsewhere_from_the_tokens_that_came() -> None:
    fleet, log = make_fleet(2)
    fleet.plan(1.0, lambda: fleet.crash(fleet.replicas[0], found_after_s=0.5, resumes=True))
    fleet.run(long_ones(4))
    broken = [track for track in log.tracks if track.num_late_gaps]
    assert len(broken) == 2
    assert all(track.num_tokens == 200 for track in log.tracks)
    undisturbed_s = min(track.ended_s or 0.0 for track in log.tracks)
    assert all(0.5 < (track.ended_s or 0.0) - undisturbed_s < 2.0 for track in broken)


def test_requests_wait_for_a_replica_that_starts_where_there_is_none() -> None:
    fleet, log = make_fleet(1)
    fleet.crash(fleet.replicas[0], found_after_s=0.0, resumes=True)
    fleet.add_replica(Replica(1, build(log), asked_s=0.0, ready_s=5.0))
    fleet.run(long_ones(2))
    assert [track.outcome for track in log.tracks] == [Outcome.COMPLETED] * 2
    assert all(5.0 < (track.first_s or 0.0) < 5.1 for track in log.tracks)


def test_requests_are_lost_where_no_replica_comes() -> None:
    fleet, log = make_fleet(1)
    fleet.crash(fleet.replicas[0], found_after_s=0.0, resumes=True)
    fleet.run(long_ones(2))
    assert [track.outcome for track in log.tracks] == [Outcome.REPLICA_LOST] * 2


def test_drained_replica_finishes_what_it_has_and_is_given_no_more() -> None:
    fleet, log = make_fleet(2)
    fleet.plan(0.5, lambda: fleet.drain(fleet.replicas[0]))
    fleet.run([*long_ones(4), *(Arrival(i, 1.0, P2, 20, 5) for i in range(4, 8))])
    assert all(track.num_tokens == track.arrival.output_tokens for track in log.tracks)
    assert fleet.replicas[0].gone_s is not None
    assert fleet.replicas[0].gone_s < fleet.now_s + 0.1
    assert fleet.replicas[1].gone_s is None


def test_idle_fleet_has_nothing_to_do() -> None:
    fleet, log = make_fleet(2)
    fleet.run([])
    fleet.run_until(100.0)
    assert fleet.now_s == 100.0
    assert log.tracks == []
    assert all(replica.engine.next_event_s == math.inf for replica in fleet.replicas)

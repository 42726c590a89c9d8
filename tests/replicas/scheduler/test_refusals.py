from replicas.scheduler.refusals import Refusals


def _first_step_of_asking(refusals: Refusals, after_step: int) -> int:
    return next(step for step in range(after_step + 1, 1000) if refusals.may_ask("a", step))


def test_refusals_let_a_stranger_ask() -> None:
    assert Refusals().may_ask("a", 0)


def test_refusals_double_the_wait_each_time() -> None:
    refusals, step, waits = Refusals(), 10, []
    for _ in range(4):
        refusals.note("a", step)
        next_step = _first_step_of_asking(refusals, step)
        waits.append(next_step - step)
        step = next_step
    assert waits == [2, 4, 8, 16]


def test_refusals_begin_anew_when_forgotten() -> None:
    refusals = Refusals()
    refusals.note("a", 1)
    refusals.note("a", 3)
    refusals.forget("a")
    assert refusals.may_ask("a", 4)
    refusals.note("a", 4)
    assert _first_step_of_asking(refusals, 4) == 6


def test_refusals_keep_only_living_requests() -> None:
    refusals = Refusals()
    refusals.note("a", 1)
    refusals.note("b", 1)
    refusals.keep_only({"b"})
    assert refusals.may_ask("a", 2)
    assert not refusals.may_ask("b", 2)
    assert len(refusals) == 1

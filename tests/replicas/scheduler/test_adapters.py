"""LoRA adapters on the real vLLM scheduler, without a model: who waits for an adapter's place, and who leaves it.

Mutations tried by hand, each found by a test here: adapters counted over the step's requests as vLLM does; users of an
adapter that is leaving admitted again; the plan ended by a request whose adapter has no place.
"""

from __future__ import annotations

import pytest

from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings
from tests.replicas.scheduler.harness.scenes import check_answers, fill, is_running, make_driver

P0, P1, P2 = PriorityClass
FORMS = [(is_async, is_v2) for is_async in (False, True) for is_v2 in (False, True)]


@pytest.mark.parametrize(("is_async", "is_v2"), FORMS)
@pytest.mark.parametrize("pause", [True, False])
def test_urgent_request_takes_the_place_of_a_batch_adapter(is_async, is_v2, pause) -> None:
    driver = make_driver(
        PreemptionSettings(pause=pause), is_async=is_async, is_v2=is_v2, max_num_seqs=8, max_adapters=1
    )
    fill(driver, P2, 2, adapter=1)
    driver.add("urgent", P0, adapter=2)
    step = driver.step()
    assert step.preempted == {"P2-0", "P2-1"}
    assert "urgent" in step.scheduled
    check_answers(driver)


def test_urgent_request_with_the_adapter_that_runs_displaces_nobody() -> None:
    driver = make_driver(max_num_seqs=8, max_adapters=1)
    fill(driver, P2, 2, adapter=1)
    driver.add("urgent", P0, adapter=1)
    step = driver.step()
    assert not step.preempted
    assert "urgent" in step.scheduled
    check_answers(driver)


def test_urgent_request_gets_its_adapters_place_over_several_steps_and_nobody_takes_it_back() -> None:
    """Two victims a step; a new request with the adapter that leaves must not come in between."""
    driver = make_driver(max_num_seqs=8, max_adapters=1)
    fill(driver, P2, 5, adapter=1)
    driver.add("urgent", P0, adapter=2)
    driver.add("newcomer", P2, adapter=1)
    driver.add("plain", P2)
    steps = driver.steps(3)
    assert [len(step.preempted) for step in steps] == [2, 2, 1]
    assert "urgent" in steps[2].scheduled
    assert not any("newcomer" in step.scheduled for step in steps)
    assert "plain" in steps[2].scheduled, "the model itself needs no place"
    check_answers(driver)


def test_users_of_the_batch_adapter_resume_when_the_urgent_one_has_ended() -> None:
    driver = make_driver(max_num_seqs=8, max_adapters=1)
    fill(driver, P2, 2, adapter=1)
    driver.add("urgent", P0, max_tokens=3, adapter=2)
    driver.steps(5)
    assert "urgent" in driver.finished
    assert is_running(driver, "P2-0")
    assert is_running(driver, "P2-1")
    assert driver.scheduler.preemption_counts.num_lost_tokens == 0
    check_answers(driver)


@pytest.mark.parametrize("priority", list(PriorityClass))
def test_equal_class_never_takes_an_adapters_place(priority) -> None:
    driver = make_driver(max_num_seqs=8, max_adapters=1)
    first = fill(driver, priority, 2, adapter=1)
    driver.add("equal", priority, adapter=2)
    for step in driver.steps(10):
        assert not step.preempted
        assert step.scheduled == set(first)
    check_answers(driver)


def test_request_behind_one_whose_adapter_has_no_place_is_served() -> None:
    """As vLLM does without a plan: it passes that one over."""
    driver = make_driver(max_num_seqs=3, max_adapters=1)
    fill(driver, P2, 2)
    driver.add("urgent", P0, adapter=1, max_tokens=30)
    driver.step()
    driver.add("held", P0, adapter=2)
    driver.add("standard", P1)
    step = driver.step()
    assert "standard" in step.scheduled
    assert len(step.preempted) == 1
    assert not is_running(driver, "held")
    check_answers(driver)


def test_place_is_counted_over_running_requests_that_get_no_tokens_in_a_step(monkeypatch) -> None:
    """vLLM counts those of the step: it would admit another adapter, and end with an assertion in the next step."""
    driver = make_driver(max_num_seqs=8, max_adapters=1, token_budget=64)
    driver.add("reading", P2, 200, adapter=1)
    driver.step()
    with monkeypatch.context() as patch:
        patch.setattr(driver.scheduler.pacing, "max_chunk", lambda r: 0 if r.request_id == "reading" else 64)
        driver.add("other", P2, adapter=2)
        step = driver.step()
        assert "reading" not in step.scheduled
        assert "other" not in step.scheduled
    driver.step()
    check_answers(driver)


def test_adapters_up_to_the_limit_run_together() -> None:
    driver = make_driver(max_num_seqs=8, max_adapters=2)
    for adapter in (1, 2, 3):
        driver.add(f"with-{adapter}", P1, adapter=adapter)
    driver.steps(2)
    assert [is_running(driver, f"with-{adapter}") for adapter in (1, 2, 3)] == [True, True, False]
    check_answers(driver)

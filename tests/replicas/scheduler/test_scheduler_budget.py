"""Who gets the tokens of a step. The rules are in `test_scheduler.py`."""

from __future__ import annotations

from slo.priority import PriorityClass
from tests.replicas.scheduler.harness.scenes import check_answers, fill, make_driver

P0, P1, P2 = PriorityClass


def test_scheduler_stream_does_not_stall_while_a_more_urgent_prompt_is_read() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    fill(driver, P2, 2)
    driver.add("urgent", P0, 300)
    for step in driver.steps(4):
        assert step.output.num_scheduled_tokens == {"P2-0": 1, "P2-1": 1, "urgent": 62}
    check_answers(driver)


def test_scheduler_running_prefills_get_tokens_in_class_order() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    driver.add("batch", P2, 600)
    driver.step()
    driver.add("urgent", P0, 160)
    shares = [driver.step().output.num_scheduled_tokens for _ in range(3)]
    assert [s.get("urgent", 0) for s in shares] == [64, 64, 32]
    assert [s.get("batch", 0) for s in shares] == [0, 0, 32]
    check_answers(driver)


def test_scheduler_waiting_prompt_gets_its_tokens_before_a_lesser_running_prefill() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    driver.add("batch", P2, 600)
    driver.step()
    driver.add("urgent", P0, 40)
    step = driver.step()
    assert step.output.num_scheduled_tokens == {"urgent": 40, "batch": 24}
    check_answers(driver)


def test_scheduler_urgent_prompt_beside_a_stream_of_its_class_shares_with_no_lesser_one() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    driver.add("stream", P0, 8, max_tokens=40)
    driver.step()
    driver.add("batch", P2, 600)
    driver.step()
    driver.add("urgent", P0, 120)
    shares = [driver.step().output.num_scheduled_tokens for _ in range(2)]
    assert shares == [{"stream": 1, "urgent": 63}, {"stream": 1, "urgent": 57, "batch": 6}]
    check_answers(driver)


def test_scheduler_urgent_prompts_are_read_one_after_the_other() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    driver.add("first", P0, 96)
    driver.add("second", P0, 96)
    shares = [driver.step().output.num_scheduled_tokens for _ in range(3)]
    assert shares == [{"first": 64}, {"first": 32, "second": 32}, {"first": 1, "second": 63}]
    check_answers(driver)


def test_scheduler_waiting_prompt_reserves_only_what_the_prefix_cache_lacks() -> None:
    driver = make_driver(token_budget=128, max_num_seqs=4, prefix_cache=True)
    prompt = list(range(3, 115))
    driver.add("before", P0, prompt, max_tokens=2)
    driver.run_to_end()
    driver.add("batch", P2, 600)
    driver.step()
    driver.add("urgent", P0, prompt)
    step = driver.step()
    assert step.output.num_scheduled_tokens == {"urgent": 16, "batch": 112}
    check_answers(driver)


def test_scheduler_waiting_prompt_of_equal_class_reserves_nothing() -> None:
    driver = make_driver(token_budget=64, max_num_seqs=4)
    driver.add("first", P2, 600)
    driver.step()
    driver.add("second", P2, 40)
    assert driver.step().output.num_scheduled_tokens == {"first": 64}

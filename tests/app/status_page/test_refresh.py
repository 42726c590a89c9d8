"""How the page follows the controller, loses it and finds it again. Time is the test's clock, but in one test.

Mutations tried by hand, each seen to fail here: asking after another time than 2 s; an absolute address asked; no
pause when hidden; no ask when shown again; an age that does not grow between answers; either clock not looked at; old
numbers not told, or told too early; the failure kept after an answer; the last numbers thrown away by a failure; the
status of the answer not looked at; no time-out; a bad answer taken over; the whole page replaced at each refresh;
alerts announced at each refresh; a question given up by hiding used, or asked again, later; colours kept by old
numbers.
"""

from __future__ import annotations

import pytest

from slo.status import AlertState
from tests.app.status_page.browser import REFRESH_S, Page
from tests.app.status_page.conftest import OpenPage
from tests.app.status_page.page_server import PREFIX, Answer, PageServer
from tests.app.status_page.reports import alert_report, status_report, unknown_report

TIMEOUT_S = 5
OLD_S = 6


def lose_controller(page: Page, server: PageServer, answer: Answer | None = None) -> None:
    server.answer = answer or Answer.refused(503, "the controller does not answer")
    page.advance(REFRESH_S)
    page.wait_for_text("Controller away", "header")


def test_page_asks_below_the_prefix_that_it_was_served_under(page: Page, server: PageServer) -> None:
    assert PREFIX in server.url
    assert page.text("h1") == "Llama-3.1-8B-Instruct"
    assert server.strangers == []


def test_page_asks_two_seconds_after_the_last_answer_and_not_before(page: Page) -> None:
    assert page.num_fetches == 1
    page.advance(REFRESH_S - 0.1)
    assert page.num_fetches == 1
    page.advance(0.1)
    assert page.num_fetches == 2


def test_refresh_shows_what_has_changed(page: Page, server: PageServer) -> None:
    server.answer = Answer.of(status_report(model="another", alerts=(), mode="off"))
    page.refresh()
    assert page.text("h1") == "another"
    assert page.text("#page").count("none firing") == 1
    assert "autoscaler off" in page.text("header")


def test_refresh_by_the_real_clock(open_at: OpenPage, server: PageServer) -> None:
    page = open_at(server, clock="")
    page.wait_for_text("Llama-3.1-8B-Instruct", "h1")
    for model in ("first", "second"):
        server.answer = Answer.of(status_report(model=model))
        page.wait_for_text(model, "h1")


def test_refresh_leaves_alone_what_has_not_changed(page: Page, server: PageServer) -> None:
    page.run("window.kept = [...document.querySelectorAll('.alerts p, .replicas tr, h1')]")
    page.run("getSelection().selectAllChildren(document.querySelector('.alerts li p:nth-child(2)'))")
    server.answer = Answer.of(status_report(preemptions_per_minute=8.1))
    page.refresh()
    assert "8.1" in page.text(".column")
    assert page.run("return kept.every((element) => element.isConnected)") is True
    assert page.run("return getSelection().toString()") == alert_report().message


def test_ages_grow_between_answers(page: Page) -> None:
    page.advance(1)
    assert page.texts(".replicas td:last-child") == ["1.4 s", "1.7 s"]
    assert "updated 1 s ago" in page.text("header")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer.refused(503, "the controller does not answer"), "HTTP 503: the controller does not answer."),
        (Answer(502, "text/html", "<h1>Bad gateway</h1>"), "HTTP 502."),
        (Answer(404, "application/json", '{"error": {"message": {"no": "text"}}}'), "HTTP 404."),
        (Answer(200, "text/html", "<h1>Hello</h1>"), "The answer is not JSON."),
        (Answer(200, "application/json", "null"), "The answer is not one that this page understands."),
        (Answer(200, "application/json", '{"model": "other"}'), "The answer is not one that this page understands."),
    ],
)
def test_controller_away_is_told_with_the_reason_and_the_age(
    answer: Answer, why: str, page: Page, server: PageServer
) -> None:
    lose_controller(page, server, answer)
    assert page.text(".notice") == f"Controller away. {why} The numbers are 2 s old. Asking again."
    assert page.text("h1") == "Llama-3.1-8B-Instruct"
    page.advance(1)
    assert "The numbers are 3 s old." in page.text(".notice")
    assert page.run("return document.title") == "Away · Llama-3.1-8B-Instruct · Expresslane"


def test_numbers_of_a_lost_controller_lose_their_colour_but_the_notice_does_not(page: Page, server: PageServer) -> None:
    lose_controller(page, server)
    assert page.run("return getComputedStyle(document.querySelector('.classes').parentNode).filter") == "grayscale(1)"
    assert page.run("return getComputedStyle(document.querySelector('.notice')).filter") == "none"


def test_server_that_goes_away_is_told_and_found_again(page: Page, server: PageServer) -> None:
    server.stop()
    page.advance(REFRESH_S)
    page.wait_for_text("Controller away. The server cannot be reached. The numbers are 2 s old.")
    server.answer = Answer.of(status_report(model="restarted"))
    server.start()
    page.refresh()
    assert page.text("h1") == "restarted"
    assert page.texts(".notice") == []
    assert page.texts(".stale") == []
    assert "Live" in page.text("header")


def test_controller_that_comes_back_is_live_again(page: Page, server: PageServer) -> None:
    lose_controller(page, server)
    server.answer = Answer.of(unknown_report())
    page.refresh()
    assert page.texts(".notice") == []


def test_page_without_any_answer_says_so_and_takes_the_first_one(open_at: OpenPage, server: PageServer) -> None:
    server.answer = Answer.refused(503, "starting")
    page: Page = open_at(server)
    page.wait_for_text("Controller away. HTTP 503: starting. There are no numbers yet. Asking again.")
    server.answer = Answer.of(status_report())
    page.refresh()
    assert page.text("h1") == "Llama-3.1-8B-Instruct"


def test_answer_that_is_late_makes_the_numbers_old_then_away(page: Page, server: PageServer) -> None:
    server.may_answer.clear()
    page.advance(REFRESH_S)
    page.advance(OLD_S - REFRESH_S)
    assert page.texts(".notice") == []
    page.advance(1)
    page.wait_for_text("No answer within 5 s. The numbers are 7 s old.", ".notice")
    server.may_answer.set()
    page.refresh()
    assert page.texts(".notice") == []


def test_old_numbers_are_told_with_their_age(page: Page, server: PageServer) -> None:
    server.may_answer.clear()
    page.run("clock.sleep(4001)")
    page.advance(REFRESH_S)
    assert page.text(".notice") == "Old. The numbers are 6 s old. No newer answer has come."


def test_age_counts_the_time_in_which_the_machine_slept(page: Page, server: PageServer) -> None:
    page.run("clock.sleep(3600 * 1000)")
    lose_controller(page, server)
    assert "The numbers are 1 h 0 min old." in page.text(".notice")


def test_age_does_not_shrink_when_the_wall_clock_is_set_back(page: Page, server: PageServer) -> None:
    page.run("clock.sleep(-3600 * 1000)")
    lose_controller(page, server)
    assert "The numbers are 2 s old." in page.text(".notice")


def test_hidden_page_does_nothing_and_asks_at_once_when_shown(page: Page, server: PageServer) -> None:
    page.hide(True)
    assert page.run("return clock.numTimers()") == 0
    page.advance(3_600)
    assert page.num_fetches == 1
    server.may_answer.clear()
    page.hide(False)
    assert page.num_fetches == 2
    assert page.text(".notice") == "Old. The numbers are 1 h 0 min old. No newer answer has come."
    server.may_answer.set()
    page.wait_for_text("updated 0 s ago", "header")
    page.refresh()
    assert page.num_fetches == 3


def test_question_given_up_by_hiding_changes_nothing_later(page: Page, server: PageServer) -> None:
    server.may_answer.clear()
    page.advance(REFRESH_S)
    page.hide(True)
    page.hide(False)
    page.advance(1)
    assert page.texts(".notice") == []
    server.may_answer.set()
    page.wait_for_text("updated 0 s ago", "header")
    assert page.texts(".notice") == []
    assert page.run("return clock.numTimers()") == 2


def test_answer_to_a_hidden_page_does_not_start_it_again(page: Page, server: PageServer) -> None:
    server.may_answer.clear()
    page.advance(REFRESH_S)
    page.hide(True)
    server.may_answer.set()
    page.run("return fetch('v1/status').then((answer) => answer.text())")
    assert page.run("return clock.numTimers()") == 0


def test_page_asks_once_at_a_time(page: Page, server: PageServer) -> None:
    server.may_answer.clear()
    page.advance(REFRESH_S + TIMEOUT_S - 0.1)
    assert page.num_fetches == 2


def test_alert_is_announced_when_it_begins_to_fire_and_not_again(page: Page, server: PageServer) -> None:
    assert page.text("[role=alert]").startswith("Firing: tbt_breach P1: Tokens come more slowly")
    page.run(
        "window.said = []; new MutationObserver(() => said.push(document.querySelector('[role=alert]').textContent))"
        ".observe(document.querySelector('[role=alert]'), { childList: true, characterData: true, subtree: true })"
    )
    server.answer = Answer.of(status_report(alerts=(alert_report(since_ago_s=90),), preemptions_per_minute=9))
    page.refresh()
    assert page.run("return said") == []
    server.answer = Answer.of(
        status_report(alerts=(alert_report(state=AlertState.CLEARED), alert_report(name="other")))
    )
    page.refresh()
    (said,) = page.run("return said")
    assert said.startswith("Firing: other P1: ")
    assert page.run("return document.title") == "1 firing · Llama-3.1-8B-Instruct · Expresslane"


def test_connection_is_announced_by_word_without_the_age(page: Page, server: PageServer) -> None:
    assert page.text("[role=status]") == "Live"
    lose_controller(page, server)
    told = "Controller away. HTTP 503: the controller does not answer."
    assert page.text("[role=status]") == told
    page.advance(1)
    assert page.text("[role=status]") == told

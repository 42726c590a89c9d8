"""How the page words what a report says.

Mutations tried by hand, each seen to fail here or in test_fields.py: target compared with `>=`; P99 digits fixed at
three, or always nine where it is missed; percentages rounded instead of cut; null taken for 0; alerts in the order
given; an alert that cleared told in full; the promise of a class not looked at; a replica's freshness not looked at;
`dry_run` of a decision or of the mode not shown; an incomplete report not marked; a meter of another number.
"""

from __future__ import annotations

import pytest

from slo.status import AlertState, ReplicaCountsReport
from tests.app.status_page.browser import Page
from tests.app.status_page.conftest import OpenPage, show
from tests.app.status_page.page_server import PageServer
from tests.app.status_page.reports import (
    alert_report,
    class_report,
    decision_report,
    replica_report,
    status_report,
    unknown_report,
)


def rows(page: Page, table: str) -> list[list[str]]:
    """The cells of each body row, its heading first."""
    cells = "[...row.cells].map((cell) => cell.innerText.replace(/\\s+/g, ' ').trim())"
    script = f"return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map((row) => {cells})"
    return list(page.run(script, f"table.{table}"))


def column(page: Page, number: int) -> dict[str, str]:
    """What the table of classes says of the class in column `number`, by row heading."""
    return {row[0]: row[number] for row in rows(page, "classes")}


def figures(page: Page) -> dict[str, str]:
    return dict(zip(page.texts(".figures dt"), page.texts(".figures dd"), strict=True))


@pytest.mark.parametrize(
    ("value", "target", "promised", "expected"),
    [
        (0.0384, 0.1, True, "38.4 ms of 100 ms met"),
        (0.1, 0.1, True, "100 ms of 100 ms met"),
        (0.1004, 0.1, True, "100.4 ms of 100 ms missed"),
        (0.10044, 0.1, True, "100.4 ms of 100 ms missed"),
        (0.238, 0.1, True, "238 ms of 100 ms missed"),
        (8.614, 0.5, True, "8.61 s of 500 ms missed"),
        (0.00042, 0.02, True, "0.42 ms of 20 ms met"),
        (0.184, 0.2, False, "184 ms of 200 ms within"),
        (0.238, 0.2, False, "238 ms of 200 ms over"),
        (8.61, None, True, "8.61 s no target"),
        (0.0, 0.1, True, "0 ms of 100 ms met"),
        (None, 0.1, True, "no requests"),
        (None, None, False, "no requests"),
    ],
)
def test_latency_is_told_against_its_target(
    value: float | None, target: float | None, promised: bool, expected: str, open_at: OpenPage, server: PageServer
) -> None:
    ttft = class_report(ttft_p99_s=value, ttft_target_s=target, promised=promised)
    tbt = class_report(tbt_p99_s=value, tbt_target_s=target, promised=promised)
    page = show(open_at, server, status_report(classes=(ttft, tbt)))
    assert column(page, 1)["TTFT P99"] == expected
    assert column(page, 2)["TBT P99"] == expected


@pytest.mark.parametrize(
    ("word", "style"), [("met", "good"), ("missed", "bad"), ("within", "quiet"), ("over", "quiet")]
)
def test_latency_word_has_a_colour_only_when_it_is_a_promise(
    word: str, style: str, open_at: OpenPage, server: PageServer
) -> None:
    value = {"met": 0.01, "within": 0.01, "missed": 1, "over": 1}[word]
    klass = class_report(ttft_p99_s=value, tbt_p99_s=value, promised=word in ("met", "missed"))
    page = show(open_at, server, status_report(classes=(klass,)))
    assert page.texts(f".classes .word.{style}") == [word, word]
    assert page.texts(".classes .word") == [word, word]


@pytest.mark.parametrize(
    ("ratio", "promised", "expected"),
    [
        (1, True, "100 %"),
        (0.99999, True, "99.99 %"),
        (0.29, True, "29 %"),
        (0, True, "0 %"),
        (None, True, "no requests"),
        (None, False, "not promised"),
    ],
)
def test_attainment_is_whole_only_when_it_is(
    ratio: float | None, promised: bool, expected: str, open_at: OpenPage, server: PageServer
) -> None:
    page = show(open_at, server, status_report(classes=(class_report(attainment_ratio=ratio, promised=promised),)))
    assert column(page, 1)["Attainment"] == expected


def test_what_is_not_known_is_said_and_is_not_zero(open_at: OpenPage, server: PageServer) -> None:
    page = show(open_at, server, unknown_report())
    assert figures(page) == {
        "Target": "not known",
        "Running": "not known",
        "Starting": "not known",
        "Draining": "not known",
        "Bounds": "1 to 4",
        "Preemptions/min": "not known",
        "KV hit rate": "not known",
        "Mean batch size": "not known",
        "GPU utilisation": "not known",
    }
    assert [row[1:] for row in rows(page, "classes")[:3]] == [["no requests"] * 3] * 3
    assert rows(page, "replicas") == [["No replica answered lately."]]
    assert rows(page, "decisions") == [["None lately."]]
    assert page.texts("section.wide")[0] == "Alerts none firing"


def test_alert_that_cleared_takes_one_line_and_others_say_what_to_look_at(
    open_at: OpenPage, server: PageServer
) -> None:
    alerts = tuple(alert_report(state=state, message="look here") for state in AlertState)
    page = show(open_at, server, status_report(alerts=alerts))
    texts = {text.split()[0]: text for text in page.texts(".alerts li")}
    assert {state: ("look here" in text, "value" in text) for state, text in texts.items()} == {
        "firing": (True, True),
        "pending": (True, True),
        "cleared": (False, False),
    }


def test_zero_is_shown_as_zero(open_at: OpenPage, server: PageServer) -> None:
    counts = ReplicaCountsReport(target=0, running=0, starting=0, draining=0, min_replicas=0, max_replicas=4)
    nothing = {"preemptions_per_minute": 0, "kv_hit_ratio": 0, "gpu_utilisation_ratio": 0, "mean_batch_size": 0}
    page = show(open_at, server, status_report(counts=counts, **nothing))
    assert list(figures(page).values()) == ["0", "0", "0", "0", "0 to 4", "0", "0 %", "0", "0 %"]


def test_alert_value_that_is_not_known_is_said(open_at: OpenPage, server: PageServer) -> None:
    page = show(open_at, server, status_report(alerts=(alert_report(value=None, threshold=0.0462),)))
    assert "value not known, threshold 0.0462 s" in page.text(".alerts")


def test_firing_alerts_come_first_and_above_all_else(open_at: OpenPage, server: PageServer) -> None:
    alerts = (
        alert_report(name="a", state=AlertState.PENDING),
        alert_report(name="b"),
        alert_report(name="c", state=AlertState.CLEARED, since_ago_s=125),
        alert_report(name="d", priority_class=None),
    )
    page = show(open_at, server, status_report(alerts=alerts))
    heads = page.texts(".alerts li p:first-child")
    assert heads == [
        "firing b P1 critical for 1 min",
        "firing d critical for 1 min",
        "pending a P1 critical for 1 min",
        "cleared c P1 critical 2 min ago",
    ]
    assert page.texts("main > section, main > div > section")[0].startswith("Alerts 2 firing")


@pytest.mark.parametrize(
    ("mode", "expected", "is_tagged"),
    [
        ("on", "autoscaler on", False),
        ("dry_run", "dry run: decisions are told, not applied", True),
        ("off", "autoscaler off: metrics and alerts only", True),
        ("paused", "autoscaler paused", True),
    ],
)
def test_mode_other_than_on_is_marked(
    mode: str, expected: str, is_tagged: bool, open_at: OpenPage, server: PageServer
) -> None:
    page = show(open_at, server, status_report(mode=mode))
    assert expected in page.text("header")
    assert page.texts("header .tag") == ([expected] if is_tagged else [])


def test_only_a_decision_of_a_dry_run_is_marked(open_at: OpenPage, server: PageServer) -> None:
    decisions = (decision_report(dry_run=True), decision_report(dry_run=False))
    page = show(open_at, server, status_report(decisions=decisions))
    assert ["dry run" in row[2] for row in rows(page, "decisions")] == [True, False]


def test_only_a_replica_that_is_not_fresh_is_marked_old(open_at: OpenPage, server: PageServer) -> None:
    replicas = (replica_report(age_s=0.4), replica_report(age_s=42, is_fresh=False))
    page = show(open_at, server, status_report(replicas=replicas))
    assert [row[-1] for row in rows(page, "replicas")] == ["0.4 s", "42 s old"]


def test_meter_shows_the_share_that_stands_above_it(page: Page) -> None:
    values = [float(m.get_dom_attribute("value")) for m in page.all("meter")]
    assert values == [1, 0.81, 1, 59 / 64, 0.74, 0.92]


@pytest.mark.parametrize("is_complete", [True, False])
def test_incomplete_report_says_so(is_complete: bool, open_at: OpenPage, server: PageServer) -> None:
    page = show(open_at, server, status_report(is_complete=is_complete))
    assert ("Incomplete." in page.text()) is not is_complete


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (9.99, "9.9 s"), (59.9, "59 s"), (60, "1 min"), (3_599, "59 min"), (3_600, "1 h 0 min"),
     (172_799, "47 h 59 min"), (172_800, "2 d 0 h")],
)  # fmt: skip
def test_age_has_the_unit_that_reads_best(seconds: float, expected: str, open_at: OpenPage, server: PageServer) -> None:
    page = show(open_at, server, status_report(decisions=(decision_report(ago_s=seconds),)))
    assert rows(page, "decisions")[0][0] == expected

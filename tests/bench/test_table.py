from bench.measure import figures_of
from bench.result import Measured, Result
from bench.run import Run
from bench.search import Search
from bench.table import cells_of, class_table, notes_of, rate_table, warnings_of
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

TOLD = answers(
    reply(0, 0.1, 0.12),
    reply(1, outcome=Outcome.SHED, error="full"),
    reply(2, outcome=Outcome.EXPIRED, error="late"),
    reply(3, outcome=Outcome.FAILED, error="cut"),
    reply(4, outcome=Outcome.REPLICA_LOST, error="gone"),
)


def result(*runs: Run, search: Search | None = None) -> Result:
    measured = tuple(Measured(i + 1, told, figures_of(told, scenario())) for i, told in enumerate(runs))
    return Result(scenario(), "m", 1, measured, search)


def test_cells_tell_how_each_request_ended() -> None:
    (figures,) = figures_of(run(TOLD), scenario()).classes
    assert cells_of(figures) == [
        "a",
        "5",
        "1",
        "1",
        "1",
        "2",
        "100 / 100",
        "20 / 20",
        "120 / 120",
        "20.0%",
        "0.10",
        "0",
    ]


def test_cells_are_dashes_where_there_is_no_figure() -> None:
    (figures,) = figures_of(run([]), scenario({"name": "a", "rate": 1})).classes
    assert cells_of(figures)[6:11] == ["-"] * 5


def test_tables_have_a_row_for_each_class_and_each_rate() -> None:
    several = result(run(TOLD), run(TOLD))
    assert class_table(several.shown().figures).row_count == 1
    assert rate_table(several).row_count == 2


def test_notes_tell_errors_and_that_events_carry_several_tokens() -> None:
    told = answers(reply(0, 0.1, 0.12, output_tokens=5, prompt_tokens=1), *[a.reply for a in TOLD[1:]])
    notes = list(notes_of(result(run(told))))
    assert notes[0] == "a: 2.50 tokens an event: TBT is the time between events, not between tokens"
    assert [note for note in notes if "not answered" in note] == [
        f"a: not answered: {error}" for error in ("cut", "full", "gone", "late")
    ]


def test_notes_are_silent_when_events_are_tokens() -> None:
    assert list(notes_of(result(run(answers(reply(0, 0.1, 0.12, output_tokens=2)))))) == []


def test_notes_tell_what_a_search_found() -> None:
    found = Search(1, 2, ((1, True), (2, False)))
    (note,) = notes_of(result(run(answers(reply(0, 0.1))), search=found))
    assert "highest rate found at which all targets hold: 0.10 requests/s" in note
    *_, note = notes_of(result(run(answers(reply(0, 0.9))), search=Search(None, 1, ((1, False),))))
    assert note == "no rate was found at which all targets hold"


def test_generator_that_did_not_keep_up_says_so_in_capitals() -> None:
    assert list(warnings_of(result(run(TOLD)))) == []
    (warning,) = warnings_of(result(run(TOLD, loop_lags_s=(0.05,))))
    assert warning.startswith(
        "THE GENERATOR DID NOT KEEP UP at 0.50 requests/s: sent 0.0 ms late and could read 50.0 ms"
    )
    (warning,) = warnings_of(result(run(TOLD, loop_lags_s=(0.05,), is_open=False)))
    assert "requests/s: could read 50.0 ms late" in warning

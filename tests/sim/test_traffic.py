from collections import Counter
from pathlib import Path

import pytest

from sim.scenario import Lengths, Scenario
from sim.scenario_file import parse_scenario
from sim.traffic import arrivals_of, azure_rows
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass
LINES = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:06.6805900,50000,55
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(LINES)
    return path


def poisson(priority: str, rate: float, **more: object) -> dict[str, object]:
    source = {"kind": "poisson", "rate_per_s": rate, "prompt_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
    return {"priority": priority, "source": source, **more}


def scenario(*traffic: dict[str, object], **more: object) -> Scenario:
    return parse_scenario({"traffic": list(traffic), "duration_s": 100, **more})


def test_azure_rows_begin_at_zero(trace: Path) -> None:
    rows = list(azure_rows(trace))
    assert [(row[1], row[2]) for row in rows] == [(374, 44), (396, 109), (50000, 55)]
    assert [row[0] for row in rows] == pytest.approx([0, 4.314579, 20.0], abs=1e-5)


def test_azure_line_of_another_format_is_named(trace: Path) -> None:
    trace.write_text(LINES + "yesterday,1,2\n")
    with pytest.raises(ValueError, match=r"trace.csv, line 5"):
        list(azure_rows(trace))
    trace.write_text("a,b\n")
    with pytest.raises(ValueError, match="its columns are"):
        list(azure_rows(trace))


def test_trace_is_cut_to_context_and_duration_and_scaled(trace: Path) -> None:
    of_trace = {"priority": "P1", "source": {"kind": "azure", "path": str(trace)}}
    arrivals = arrivals_of(scenario(of_trace, time_scale=2, duration_s=11))
    assert [a.arrived_s for a in arrivals] == pytest.approx([0, 4.314579 / 2, 10.0], abs=1e-5)
    assert arrivals[2].prompt_tokens + arrivals[2].output_tokens < 32768
    assert len(arrivals_of(scenario(of_trace, duration_s=11))) == 2


def test_longer_prompts_of_a_trace_are_cut(trace: Path) -> None:
    source = {"kind": "azure", "path": str(trace), "max_prompt_tokens": 380}
    arrivals = arrivals_of(scenario({"priority": "P1", "source": source}))
    assert [a.prompt_tokens for a in arrivals] == [374, 380, 380]


def test_stream_has_a_beginning_and_an_end() -> None:
    times = [a.arrived_s for a in arrivals_of(scenario(poisson("P1", 5, from_s=20, until_s=60)))]
    assert 20 <= min(times) < 25
    assert 55 < max(times) < 60


def test_classes_that_share_a_trace_take_each_row_once(trace: Path) -> None:
    lines = "".join(f"2023-11-16 18:15:{i % 60:02}.0,{i + 1},5\n" for i in range(500))
    trace.write_text(LINES.splitlines()[0] + "\n" + lines)
    shares = [
        {"priority": c, "source": {"kind": "azure", "path": str(trace), "share": share}}
        for c, share in (("P0", 0.3), ("P1", 0.7))
    ]
    arrivals = arrivals_of(scenario(*shares))
    assert sorted(a.prompt_tokens for a in arrivals) == list(range(1, 501))
    assert Counter(a.priority for a in arrivals)[P0] == pytest.approx(150, abs=40)


def test_poisson_arrives_at_its_rate_in_order_and_by_its_seed() -> None:
    spec = scenario(poisson("realtime", 5), poisson("batch", 2, time_scale=2), seed=3)
    arrivals = arrivals_of(spec)
    assert arrivals == arrivals_of(spec)
    assert arrivals != arrivals_of(spec.model_copy(update={"seed": 4}))
    assert [a.arrived_s for a in arrivals] == sorted(a.arrived_s for a in arrivals)
    assert [a.number for a in arrivals] == list(range(len(arrivals)))
    counts = Counter(a.priority for a in arrivals)
    assert counts[P0] == pytest.approx(500, rel=0.15)
    assert counts[P2] == pytest.approx(400, rel=0.15)


def test_lengths_have_their_mean_and_bound() -> None:
    spec = poisson("P1", 50)
    spec["source"]["prompt_tokens"] = Lengths(mean=200, cv=1.0, max=400).model_dump()  # type: ignore[index]
    tokens = [a.prompt_tokens for a in arrivals_of(scenario(spec))]
    assert max(tokens) == 400
    assert sum(tokens) / len(tokens) == pytest.approx(170, rel=0.1)

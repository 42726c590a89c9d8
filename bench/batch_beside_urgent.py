"""What an urgent request feels of a batch of OpenAI's batch API that runs beside it.

    python -m bench.batch_beside_urgent [--lines 500] [--slots 8] [--settings '{"in_flight_ratio": 0.5}']

Starts the whole application on this machine. The urgent requests of the scenario `slots` come first alone, then the
same ones beside the batch, round after round until it has ended. Prints Markdown: ratios to the same run's quiet
figures. Ratios travel between machines, times do not. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from bench.claims import HEADER, Claim, p99_ratio, quotient
from bench.compare.sizes import DEFAULT_SLOTS, Sizes
from bench.measure import ClassFigures
from bench.runs import Runs, expresslane, say
from slo.outcome import Outcome

LINES: Final = 500
PROMPT_WORDS: Final = 24
OUTPUT_TOKENS: Final = 32
URGENT: Final = "slots"
AIM: Final = 1.5
TIMEOUT_S: Final = 60
ENDED: Final = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Ended:
    """A batch that has ended, and how long that took, seconds; as seen between rounds of urgent requests."""

    status: str
    completed: int
    failed: int
    took_s: float


Rounds = Sequence[ClassFigures]


def measure(runs: Runs, client: httpx.Client, model: str, num_lines: int) -> tuple[ClassFigures, Rounds, Ended]:
    """P0 alone; in the rounds that began while the batch ran; the batch."""
    say("alone")
    alone = runs.run(URGENT, only=["P0"]).figures.of("P0")
    say(f"beside a batch of {num_lines} lines")
    batch_id, started_s = _begin(client, model, num_lines), time.perf_counter()
    beside: list[ClassFigures] = []
    while (ended := _ended(client, batch_id, started_s)) is None:
        beside.append(runs.run(URGENT, only=["P0"]).figures.of("P0"))
    return alone, beside, ended


def _begin(client: httpx.Client, model: str, num_lines: int) -> str:
    content = "".join(json.dumps(_line(model, n)) + "\n" for n in range(num_lines))
    files = {"file": ("bench.jsonl", content.encode())}
    file = client.post("/v1/files", data={"purpose": "batch"}, files=files).raise_for_status().json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id: str = client.post("/v1/batches", json=asked).raise_for_status().json()["id"]
    return batch_id


def _line(model: str, number: int) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": f"{number}: " + "word " * PROMPT_WORDS,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}


def _ended(client: httpx.Client, batch_id: str, started_s: float) -> Ended | None:
    batch = client.get(f"/v1/batches/{batch_id}").raise_for_status().json()
    if batch["status"] not in ENDED:
        return None
    counts = batch["request_counts"]
    return Ended(batch["status"], counts["completed"], counts["failed"], time.perf_counter() - started_s)


def claims(alone: ClassFigures, beside: Rounds, batch: Ended, num_lines: int) -> list[Claim]:
    """What is compared: the rounds that lay within the batch, and the last, which it may have left early. Pure."""
    ratios = [p99_ratio(figures.ttft, alone.ttft) for figures in beside]
    is_whole = batch.status == "completed" and batch.completed == num_lines
    return [
        Claim("P0 alone: TTFT p50 / p99, ms", _ttft(alone)),
        Claim("P0 beside the batch, each round: TTFT p50 / p99, ms", "; ".join(map(_ttft, beside))),
        Claim("the same: TTFT p99, ratio to alone, each round", " ".join(f"{ratio:.2f}" for ratio in ratios)),
        Claim("the same: the median round", f"{median(ratios):.2f}", f"at most {AIM:g}", median(ratios) <= AIM),
        Claim("P0 answered, of those sent", _answered(beside)),
        Claim(
            f"the batch of {num_lines} lines: completed / failed",
            f"{batch.completed} / {batch.failed}",
            "all completed",
            is_whole,
        ),
        Claim("the same: lines a second", f"{quotient(batch.completed, batch.took_s):.2f}"),
    ]


def _answered(rounds: Rounds) -> str:
    num_answered = sum(figures.outcomes.get(Outcome.COMPLETED, 0) for figures in rounds)
    return f"{num_answered} of {sum(figures.num_requests for figures in rounds)}"


def _ttft(figures: ClassFigures) -> str:
    return "none" if figures.ttft is None else f"{figures.ttft.p50_ms:.0f} / {figures.ttft.p99_ms:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch_beside_urgent", description="Urgent beside a batch.")
    parser.add_argument("--lines", type=int, default=LINES, help="Of the batch.")
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS, help="Run slots of the engine.")
    parser.add_argument("--settings", type=json.loads, default={}, help="Of the group `batch`, as JSON.")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as directory:
        settings = {"path": str(Path(directory) / "batches.sqlite3"), **given.settings}
        say("starting")
        with expresslane(Sizes(slots=given.slots), batch=json.dumps(settings)) as server:
            contender = server.contender
            with httpx.Client(base_url=str(contender.url), timeout=TIMEOUT_S) as client:
                measured = measure(Runs(server), client, str(contender.model), given.lines)
    print(HEADER)
    for claim in claims(*measured, given.lines):
        print(claim.row(), flush=True)


if __name__ == "__main__":
    main()

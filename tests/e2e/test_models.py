"""Two models in one application, one of them with adapters in a directory: one story on a deployment of its own.

The second one's fleet goes to zero when nobody asks for it, while the first stays: each is scaled by its own signals.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.cluster import free_port
from cli.config import config_for
from slo import metrics
from slo.status import StatusReport
from tests.e2e.conftest import LIMIT_S, PERIOD_S, running_application, tiny_engine, wait_until
from tests.e2e.test_operator import scrape, value
from tests.tiny_adapter import make_tiny_adapter
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
ZERO_AFTER_S = 10


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapters of the first model; empty."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(scope="module")
def http(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("models")
    one, two = (make_tiny_model(directory / name, seed) for seed, name in enumerate(("one", "two")))
    arguments = {
        "engine": tiny_engine(one)["engine"],
        "autoscale": {"period_s": PERIOD_S, "window_s": 3 * PERIOD_S, "stale_after_s": 10 * PERIOD_S},
        "models": [
            {"model": {"source": str(one)}, "engine": {"adapters_dir": str(shelf)}},
            {
                "model": {"source": str(two), "names": ["two", "zwei"]},
                "engine": {"max_num_seqs": 2},
                "autoscale": {
                    "min_replicas": 0,
                    "max_replicas": 1,
                    "zero_after_s": ZERO_AFTER_S,
                    "settle_s": 3,
                    "scale_in_quiet_s": 3,
                    "scale_in_quiet_max_s": 3,
                },
            },
        ],
    }
    with running_application(directory, config_for(arguments, free_port())) as started:  # noqa: SIM117
        with httpx.Client(base_url=started.url, timeout=LIMIT_S) as client:
            yield client


def answer(http: httpx.Client, model: str | None, **fields: Any) -> str:
    body = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}
    told = http.post("/v1/completions", json=body if model is None else body | {"model": model})
    assert told.status_code == 200, told.text
    return str(told.json()["choices"][0]["text"])


def status(http: httpx.Client, model: str) -> StatusReport:
    return StatusReport.model_validate_json(http.get("/v1/status", params={"model": model}).content)


def names(http: httpx.Client) -> list[str]:
    return [model["id"] for model in http.get("/v1/models").json()["data"]]


def test_models_answer_by_their_names_and_are_told_and_scaled_apart(http: httpx.Client) -> None:
    texts = {name: answer(http, name) for name in ("one", "two", "zwei", None)}
    assert texts["one"] == texts[None] != texts["two"] == texts["zwei"]
    assert names(http) == ["one", "two", "zwei"]
    unknown = http.post("/v1/completions", json={"model": "three", "prompt": "Hello"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")

    def completed(model: str) -> float:
        return value(scrape(http), metrics.REQUESTS.name, model=model, outcome="completed")

    wait_until(lambda: completed("one") == 2, "the first model's requests are counted")
    wait_until(lambda: completed("two") == 2, "the second model's requests are counted")
    one, two = status(http, "one"), status(http, "two")
    assert one.models == two.models == ("one", "two")
    assert [[r.max_num_seqs for r in report.replicas] for report in (one, two)] == [[4], [2]]
    assert (two.counts.min_replicas, two.counts.max_replicas) == (0, 1)

    wait_until(lambda: status(http, "two").counts.running == 0, "nobody asks for the second model")
    one, two = status(http, "one"), status(http, "two")
    assert [d.reason for d in two.decisions] == ["idle"]
    assert (one.counts.target, one.counts.running, one.decisions) == (1, 1, ())
    assert answer(http, "one") == texts["one"]
    assert value(scrape(http), metrics.REPLICAS.name, model="two", state="running") == 0
    assert value(scrape(http), metrics.REPLICAS.name, model="one", state="running") == 1


def test_adapter_is_served_as_soon_as_it_lies_in_the_directory(http: httpx.Client, shelf: Path) -> None:
    make_tiny_adapter(shelf / ".red")
    (shelf / ".red").rename(shelf / "red")
    wait_until(lambda: "red" in names(http), "the adapter is listed")
    assert answer(http, "red") != answer(http, "one")
    (shelf / "broken").mkdir()
    wait_until(lambda: "broken" in names(http), "the broken one is listed")
    refused = http.post("/v1/completions", json={"model": "broken", "prompt": "Hello"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "model"
    assert "it has no adapter_config.json" in refused.json()["error"]["message"]
    (shelf / "red").rename(shelf / ".red")
    wait_until(lambda: http.get("/v1/models/red").status_code == 404, "the adapter is gone")
    gone = http.post("/v1/completions", json={"model": "red", "prompt": "Hello"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")

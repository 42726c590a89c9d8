"""What operators are told by the deployed application."""

from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from slo import metrics
from slo.metrics import MetricKind
from slo.status import AlertsReport, StatusReport
from tests.e2e.conftest import MODEL, SLOTS, wait_until

pytestmark = pytest.mark.e2e
TOKENS = 6
BODY = {"model": MODEL, "prompt": "Hello", "max_tokens": TOKENS, "ignore_eos": True}


def scrape(http: httpx.Client) -> list[Sample]:
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    return [s for family in text_string_to_metric_families(answer.text) for s in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    return sum(s.value for s in samples if s.name == name and s.labels.items() >= labels.items())


def wait_for_a_new_look(http: httpx.Client) -> None:
    """Waits until the controller knows all that has ended by now: a look that began after this call is over.

    A replica's age tells whether it was asked since then; the ingress may have been asked a little before it, so twice.
    """

    def is_looked_at_again() -> bool:
        elapsed_s = time.monotonic() - asked_s
        replicas = StatusReport.model_validate_json(http.get("/v1/status").content).replicas
        return any(r.age_s < elapsed_s for r in replicas)

    for _ in range(2):
        asked_s = time.monotonic()
        wait_until(is_looked_at_again, "a look at the fleet")


def test_metrics_count_what_was_sent(http: httpx.Client) -> None:
    def grown(name: str, **labels: str) -> float:
        return value(scrape(http), name, **labels) - value(before, name, **labels)

    wait_for_a_new_look(http)
    before = scrape(http)
    for _ in range(3):
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}, headers={"X-Priority": "P0"}) as told:
            assert "[DONE]" in told.read().decode()
    assert http.post("/v1/completions", json=BODY, headers={"X-Priority": "P2"}).status_code == 200
    assert http.post("/v1/completions", json=BODY | {"max_tokens": -1}).status_code == 400
    assert http.post("/v1/completions", content=b"{").status_code == 400
    wait_for_a_new_look(http)
    assert grown(metrics.UNCLASSIFIED.name, outcome="rejected") == 1
    assert grown(metrics.REQUESTS.name, priority_class="P0", outcome="completed") == 3
    assert grown(metrics.REQUESTS.name, priority_class="P1", outcome="rejected") == 1
    assert grown(metrics.REQUESTS.name, priority_class="P2", outcome="completed") == 1
    assert grown(metrics.ARRIVALS.name, priority_class="P0") == 3
    assert grown(f"{metrics.TTFT.name}_count", priority_class="P0") == 3
    assert grown(f"{metrics.TBT.name}_count", priority_class="P0") <= 3 * (TOKENS - 1)
    assert grown(f"{metrics.E2E.name}_count", priority_class="P0") == 3
    assert grown(f"{metrics.TTFT.name}_count", priority_class="P2") == 0
    assert grown(metrics.HELD.name, priority_class="P0") + grown(metrics.MISSED.name, priority_class="P0") == 3
    assert value(scrape(http), metrics.IN_FLIGHT.name) == 0
    wait_until(lambda: grown(f"{metrics.QUEUE_WAIT.name}_count", priority_class="P0") == 3, "the engine's count")
    assert grown(metrics.STEP_TOKENS.name) >= 3 * TOKENS


def test_metrics_are_of_every_kind_that_this_machine_has(http: httpx.Client) -> None:
    wait_until(lambda: value(scrape(http), metrics.REPLICAS.name, state="fresh") == 1, "the replica is fresh")
    told = {s.name for s in scrape(http)}
    absent = {m.name for m in metrics.ALL if not told & set(m.series)}
    if not value(scrape(http), metrics.KV_BLOCKS_USED.name):
        absent -= {metrics.KV_FRAGMENTATION.name}
    assert absent <= {m.name for m in metrics.ALL if m.kind is MetricKind.GAUGE and "gpu" in m.name}


def test_status_tells_the_fleet(http: httpx.Client) -> None:
    def status() -> StatusReport:
        return StatusReport.model_validate_json(http.get("/v1/status").content)

    wait_until(lambda: status().is_complete, "everyone answers")
    report = status()
    assert (report.model, report.mode) == (MODEL, "on")
    assert (report.counts.target, report.counts.running, report.counts.draining) == (1, 1, 0)
    assert (report.counts.min_replicas, report.counts.max_replicas) == (1, 1)
    (replica,) = report.replicas
    assert (replica.max_num_seqs, replica.is_fresh) == (SLOTS, True)
    assert [c.priority_class for c in report.classes] == ["P0", "P1", "P2"]


def test_alerts_are_told(http: httpx.Client) -> None:
    answer = http.get("/v1/alerts")
    assert answer.status_code == 200
    assert all(a.threshold > 0 for a in AlertsReport.model_validate_json(answer.content).alerts)


def test_status_page_is_served_with_its_policy(http: httpx.Client) -> None:
    answer = http.get("/status")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert "<title>" in answer.text

"""The connector as vLLM makes it: what it refuses, where it stands aside, and what the two sides tell each other."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from replicas.kv_swap.configuration import transfer_config
from replicas.kv_swap.connector import SwapConnector
from replicas.kv_swap.metadata import HostSlots, InMove, OutMove, SwapFile, SwapMoves, SwapReport
from replicas.kv_swap.moves import Bandwidths, Direction, MoveDone, Tier
from replicas.kv_swap.support import why_unsupported
from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from slo.settings.swap import SwapSettings
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler
from tests.replicas.scheduler.harness.build import make_config, make_kv_config
from tests.replicas.scheduler.harness.scenes import check_answers, fill
from tests.replicas.scheduler.harness.swap import SymbolicCopier
from tests.replicas.scheduler.harness.swap_run import SwapRun, make_swap_driver

P0, P1, P2 = PriorityClass
SWAP = SwapSettings(host_bytes=2**20)
SHAPE = EngineShape(swap=SWAP)


def make_connector(**changes) -> SwapConnector:
    config = make_config(SHAPE)
    config.kv_transfer_config = KVTransferConfig(**{**transfer_config(SWAP), **changes})
    return SwapConnector(config, KVConnectorRole.SCHEDULER, make_kv_config(SHAPE))


def test_connector_is_made_by_vllm_from_the_transfer_config() -> None:
    scheduler = build_scheduler(SHAPE)
    assert isinstance(scheduler.connector, SwapConnector)
    assert scheduler.connector.settings == SWAP
    assert not scheduler.defer_block_free
    assert not scheduler.requires_kv_delivery
    assert scheduler.recompute_kv_load_failures
    assert KVConnectorFactory.supports_hma_config(scheduler.vllm_config.kv_transfer_config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_role": "kv_both"}, "kv_role 'kv_producer'"),
        ({"kv_role": "kv_consumer"}, "kv_consumer"),
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy 'recompute'"),
        ({"kv_connector": "MultiConnector"}, "inside MultiConnector: set swap.host_bytes to 0"),
        ({"kv_connector_extra_config": {"host_bites": 1}}, "host_bites"),
    ],
)
def test_connector_refuses_to_start_where_it_would_do_harm(changes: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make_connector(**changes)


UNSUPPORTED = {
    "speculative decoding": ("speculative_config", object()),
    "pipeline": ("parallel_config.pipeline_parallel_size", 2),
    "context": ("parallel_config.decode_context_parallel_size", 2),
    "encoder-decoder": ("model_config.is_encoder_decoder", True),
    "pooling": ("model_config.runner_type", "pooling"),
    "encoder cache": ("ec_transfer_config", object()),
}


def config_with(attribute: str, value: object) -> SimpleNamespace:
    """The parts of a configuration that are asked, with one changed."""
    config = SimpleNamespace(
        speculative_config=None,
        ec_transfer_config=None,
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        model_config=SimpleNamespace(is_encoder_decoder=False, runner_type="generate"),
    )
    *path, name = attribute.split(".")
    owner = getattr(config, path[0]) if path else config
    assert hasattr(owner, name)
    setattr(owner, name, value)
    return config


@pytest.mark.parametrize("named", UNSUPPORTED)
def test_connector_stands_aside_in_an_engine_that_swap_does_not_suit(named: str) -> None:
    reason = why_unsupported(config_with(*UNSUPPORTED[named]), make_kv_config(SHAPE))
    assert reason is not None
    assert named in reason


def test_connector_stands_aside_when_layers_do_not_keep_the_whole_context() -> None:
    kv_config = make_kv_config(SHAPE)
    group = kv_config.kv_cache_groups[0]
    fine = config_with("speculative_config", None)
    assert why_unsupported(fine, kv_config) is None
    two = replace(kv_config, kv_cache_groups=[group, group])
    assert "more than one group" in (why_unsupported(fine, two) or "")
    other = replace(kv_config, kv_cache_groups=[SimpleNamespace(kv_cache_spec=object())])
    assert "other than full attention" in (why_unsupported(fine, other) or "")


@pytest.mark.parametrize("host_bytes", [0, 2**20])
def test_scheduler_recomputes_as_without_a_connector_when_swap_stands_aside(monkeypatch, host_bytes: int) -> None:
    if host_bytes:
        monkeypatch.setattr("replicas.kv_swap.connector.why_unsupported", lambda *_: "of the weather")
    shape = EngineShape(num_blocks=33, max_num_seqs=4, prefix_cache=False, swap=SwapSettings(host_bytes=host_bytes))
    driver = Driver(build_scheduler(shape))
    driver.swap = None
    assert isinstance(driver.scheduler, PriorityScheduler)
    assert not driver.scheduler.swapping.is_on
    fill(driver, P2, 2, prompt=200, max_tokens=20)
    driver.add("urgent", P0, 150, max_tokens=5)
    step = driver.step()
    assert len(step.preempted) == 1
    assert "urgent" in step.scheduled
    check_answers(driver)
    counts = driver.scheduler.preemption_counts
    assert (counts.num_recomputed, counts.num_swapped, sum(counts.swap.num_recomputed.values())) == (1, 0, 0)


def test_scheduler_pauses_beside_the_swap_connector_and_beside_no_other() -> None:
    driver = make_swap_driver(SwapRun(max_num_seqs=2, num_blocks=200))
    fill(driver, P2, 2)
    request = driver.requests["P2-0"]
    assert driver.scheduler.can_pause(request)
    driver.add("urgent", P0)
    assert len(driver.step().preempted) == 1
    assert driver.scheduler.preemption_counts.num_paused == 1
    del driver.scheduler.__dict__["_engine_can_pause"]
    driver.scheduler.connector = object()
    assert not driver.scheduler.can_pause(request)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("sampling_params", None), ("mm_features", [object()]), ("resumable", True), ("skip_reading_prefix_cache", True)],
)
def test_scheduler_swaps_no_request_of_which_more_than_its_kv_would_have_to_come_back(attribute, value) -> None:
    driver = make_swap_driver(SwapRun())
    request = driver.add("a", P2)
    assert driver.scheduler.swapping.can_swap(request)
    assert hasattr(request, attribute)
    setattr(request, attribute, value)
    assert not driver.scheduler.swapping.can_swap(request)


def test_scheduler_swaps_no_request_for_prompt_logprobs_or_with_output_that_is_dropped() -> None:
    driver = make_swap_driver(SwapRun())
    request = driver.add("a", P2)
    request.num_stale_output_tokens, request.drop_stale_output = 1, True
    assert not driver.scheduler.swapping.can_swap(request)
    request.drop_stale_output = False
    assert driver.scheduler.swapping.can_swap(request)
    request.sampling_params.prompt_logprobs = 1
    assert not driver.scheduler.swapping.can_swap(request)


def test_connector_takes_the_rates_that_the_slowest_worker_measured() -> None:
    driver = make_swap_driver(SwapRun(num_workers=2))
    swap = driver.scheduler.connector.swap
    before_ms = swap.estimate_ms(1000, Direction.OUT, Tier.MEMORY)
    slow, fast = (SwapReport(bandwidths={Tier.MEMORY: Bandwidths(rate, 2 * rate)}) for rate in (1e6, 1e12))
    swap.note_report(fast.aggregate(slow), now_s=0.0)
    out_ms, in_ms = (swap.estimate_ms(1000, direction, Tier.MEMORY) for direction in Direction)
    assert out_ms == pytest.approx(1000 * SHAPE.block_bytes / 1e6 * 1e3)
    assert in_ms == pytest.approx(out_ms / 2)
    assert out_ms > before_ms


def test_connector_learns_from_what_moves_took(monkeypatch) -> None:
    driver = make_swap_driver(SwapRun(num_blocks=33, prefix_cache=False, max_delay_steps=0))
    swap = driver.scheduler.connector.swap
    fill(driver, P2, 2, prompt=200, max_tokens=40)
    end = SymbolicCopier._end
    monkeypatch.setattr(SymbolicCopier, "_end", lambda self, move: replace(end(self, move), seconds=10.0))
    before_ms = swap.estimate_ms(10, Direction.OUT, Tier.MEMORY)
    driver.add("urgent", P0, 150, max_tokens=5)
    check_answers(driver)
    assert swap.estimate_ms(10, Direction.OUT, Tier.MEMORY) > before_ms
    assert swap.counts.seconds[Direction.OUT] == 10.0


def test_connector_s_two_sides_talk_in_values_that_cross_processes() -> None:
    moves = SwapMoves([OutMove(1, (4, 5), HostSlots((0, 1)))], [InMove(2, "a", SwapFile(3, 1), (6,))], [7])
    report = SwapReport([MoveDone(1, Tier.MEMORY, Direction.OUT, 10, 0.5, None)], {Tier.MEMORY: Bandwidths(1.0, 2.0)})
    assert pickle.loads(pickle.dumps(moves)) == moves
    assert pickle.loads(pickle.dumps(report)) == report


def test_connector_reports_nothing_when_nothing_happened() -> None:
    driver = make_swap_driver(SwapRun())
    (connector,) = driver.swap.connectors
    assert connector.build_connector_worker_meta() is not None, "what was measured"
    assert connector.get_finished(set()) == (None, None)
    assert connector.get_block_ids_with_load_errors() == set()
    assert connector.build_connector_worker_meta() is None

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from replicas.engine import SCHEDULER_CLS, engine_arguments, engine_environment
from slo.settings import EngineSettings, SchedulerSettings, SwapSettings
from slo.settings.serving import OWN_ENGINE_ARGS
from tests.tiny_model import make_tiny_model

SCHEDULER = SchedulerSettings()
EVERYTHING = EngineSettings(
    max_num_seqs=8,
    max_model_len=2048,
    dtype="float32",
    enable_prefix_caching=False,
    watermark_ratio=0.1,
    kv_cache_bytes=1000,
    block_tokens=64,
    enforce_eager=False,
    reasoning_parser="deepseek_r1",
    extra_args={"seed": 7},
)


def arguments_of(engine: EngineSettings, cpu: bool) -> dict[str, Any]:
    return engine_arguments("/models/tiny", ("tiny", "t"), engine, SCHEDULER, cpu)


def environment_of(engine: EngineSettings | None = None, **changes: Any) -> dict[str, str]:
    asked = {"model_is_local": True, "cpu": True, "cores": 8, **changes}
    return engine_environment(engine or EngineSettings(), **asked)


@pytest.mark.parametrize("cpu", [False, True])
def test_engine_arguments_always_put_our_scheduler_in_with_its_settings(cpu: bool) -> None:
    arguments = arguments_of(EngineSettings(), cpu)
    assert arguments["scheduling_policy"] == "priority"
    assert arguments["scheduler_cls"] == SCHEDULER_CLS
    assert arguments["additional_config"] == SCHEDULER.as_additional_config()
    assert (arguments["model"], arguments["served_model_name"]) == ("/models/tiny", ["tiny", "t"])
    assert (arguments["max_num_seqs"], arguments["watermark"], arguments["enable_prefix_caching"]) == (64, 0.05, True)


def test_engine_arguments_leave_the_rest_to_vllm_when_nothing_is_set_on_a_gpu() -> None:
    arguments = arguments_of(EngineSettings(), cpu=False)
    assert arguments["block_size"] == 16
    assert not {"kv_cache_memory_bytes", "enforce_eager", "max_model_len", "reasoning_parser"} & arguments.keys()
    assert None not in arguments.values()


def test_engine_arguments_suit_the_cpu_backend_when_nothing_is_set() -> None:
    arguments = arguments_of(EngineSettings(), cpu=True)
    assert (arguments["block_size"], arguments["kv_cache_memory_bytes"]) == (32, 2**30)
    assert arguments["enforce_eager"] is True


@pytest.mark.parametrize("cpu", [False, True])
def test_engine_arguments_carry_what_is_set_whatever_the_backend(cpu: bool) -> None:
    assert arguments_of(EVERYTHING, cpu) == {
        "model": "/models/tiny",
        "served_model_name": ["tiny", "t"],
        "scheduling_policy": "priority",
        "scheduler_cls": SCHEDULER_CLS,
        "additional_config": SCHEDULER.as_additional_config(),
        "max_num_seqs": 8,
        "max_model_len": 2048,
        "dtype": "float32",
        "watermark": 0.1,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 1000,
        "enforce_eager": False,
        "block_size": 64,
        "reasoning_parser": "deepseek_r1",
        "seed": 7,
    }


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("asked", [True, False])
def test_engine_arguments_carry_enforce_eager_when_it_is_set(asked: bool, cpu: bool) -> None:
    assert arguments_of(EngineSettings(enforce_eager=asked), cpu)["enforce_eager"] is asked


def test_engine_arguments_are_those_that_extra_args_may_not_hold() -> None:
    assert arguments_of(EVERYTHING, cpu=True).keys() - {"seed"} == OWN_ENGINE_ARGS


@pytest.mark.parametrize("swap", [None, SwapSettings(host_bytes=0)])
def test_engine_arguments_bring_no_connector_without_swap(swap: SwapSettings | None) -> None:
    arguments = engine_arguments("/models/tiny", ("tiny",), EngineSettings(), SCHEDULER, True, swap)
    assert "kv_transfer_config" not in arguments


def test_engine_arguments_bring_the_swap_connector_with_its_settings() -> None:
    swap = SwapSettings(host_bytes=2**20, max_move_ms=7)
    arguments = engine_arguments("/models/tiny", ("tiny",), EngineSettings(), SCHEDULER, True, swap)
    transfer = arguments["kv_transfer_config"]
    assert transfer["kv_role"] == "kv_producer"
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert SwapSettings(**json.loads(json.dumps(transfer["kv_connector_extra_config"]))) == swap


def test_engine_arguments_refuse_a_second_connector() -> None:
    other = EngineSettings(extra_args={"kv_transfer_config": {"kv_connector": "NixlConnector"}})
    with pytest.raises(ValueError, match=r"set swap\.host_bytes to 0"):
        engine_arguments("/models/tiny", ("tiny",), other, SCHEDULER, True, SwapSettings(host_bytes=2**20))
    alone = engine_arguments("/models/tiny", ("tiny",), other, SCHEDULER, True, SwapSettings(host_bytes=0))
    assert alone["kv_transfer_config"] == {"kv_connector": "NixlConnector"}


def test_engine_arguments_of_swap_become_vllm_s_transfer_config(tmp_path: Path) -> None:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    model = make_tiny_model(tmp_path)
    swap = SwapSettings(host_bytes=2**20)
    arguments = engine_arguments(str(model), ("tiny",), EngineSettings(dtype="float32"), SCHEDULER, True, swap)
    config = AsyncEngineArgs(**arguments).create_engine_config()
    assert isinstance(config.kv_transfer_config, KVTransferConfig)
    assert config.kv_transfer_config.kv_connector == "SwapConnector"


def test_engine_arguments_are_all_known_to_vllm() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert arguments_of(EVERYTHING, cpu=True).keys() <= known
    assert known >= OWN_ENGINE_ARGS


def test_engine_environment_is_offline_when_the_model_is_local() -> None:
    assert environment_of(model_is_local=True)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment_of(model_is_local=False)


@pytest.mark.parametrize("cpu", [False, True])
def test_engine_environment_never_reports_usage(cpu: bool) -> None:
    assert environment_of(cpu=cpu)["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_engine_environment_leaves_one_core_to_the_server(cores: int, threads: str) -> None:
    environment = environment_of(cores=cores)
    assert environment["OMP_NUM_THREADS"] == threads
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_engine_environment_takes_the_threads_that_are_set() -> None:
    assert environment_of(EngineSettings(cpu_threads=16), cores=2)["OMP_NUM_THREADS"] == "16"


def test_engine_environment_sets_no_threads_on_a_gpu() -> None:
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & environment_of(cpu=False).keys()

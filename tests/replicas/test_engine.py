import dataclasses
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from replicas.engine import (
    IN_PROCESS_EXECUTOR,
    SCHEDULER_CLS,
    engine_arguments,
    engine_environment,
    frontend_arguments,
    multiplies_bfloat16,
    resolve_dtype,
    start_engine,
    unknown_arguments,
)
from replicas.statistics import EngineStatistics
from slo.settings import EngineSettings, SchedulerSettings, SwapSettings
from slo.settings.engine import CONNECTOR_ARGS, OWN_ENGINE_ARGS
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


def arguments_of(engine: EngineSettings, cpu: bool, swap: SwapSettings | None = None) -> dict[str, Any]:
    return engine_arguments("/models/tiny", ("tiny", "t"), engine, SCHEDULER, cpu, swap)


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
    arguments = arguments_of(EVERYTHING, cpu)
    arguments.pop("distributed_executor_backend", None)
    assert arguments == {
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


@pytest.mark.parametrize(
    ("devices", "cpu", "executor"),
    [(1, True, IN_PROCESS_EXECUTOR), (1, False, None), (2, True, "mp"), (2, False, "mp")],
)
def test_engine_of_one_device_computes_in_the_core_on_cpus_and_where_vllm_has_it_elsewhere(
    devices: int, cpu: bool, executor: str | None
) -> None:
    arguments = arguments_of(EngineSettings(tensor_parallel_size=devices), cpu)
    assert arguments.get("distributed_executor_backend") == executor


@pytest.mark.parametrize(
    ("asked", "cpu", "multiplies", "dtype"),
    [
        ("auto", True, False, "float32"),
        ("auto", True, True, "auto"),
        ("auto", False, False, "auto"),
        ("bfloat16", True, False, "bfloat16"),
    ],
)
def test_dtype_is_float32_where_bfloat16_would_crawl_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, cpu: bool, multiplies: bool, dtype: str
) -> None:
    monkeypatch.setattr("replicas.engine.multiplies_bfloat16", lambda: multiplies)
    monkeypatch.setattr("replicas.engine.is_cpu_build", lambda: cpu)
    assert resolve_dtype(asked) == dtype


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="reads Linux's flags of an x86")
def test_multiplies_bfloat16_where_the_cpu_has_avx512() -> None:
    assert multiplies_bfloat16() is ("avx512bw" in Path("/proc/cpuinfo").read_text().split())


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("asked", [True, False])
def test_engine_arguments_carry_enforce_eager_when_it_is_set(asked: bool, cpu: bool) -> None:
    assert arguments_of(EngineSettings(enforce_eager=asked), cpu)["enforce_eager"] is asked


def test_engine_arguments_are_none_that_extra_args_may_hold() -> None:
    everything = EVERYTHING.model_copy(update={"tensor_parallel_size": 2, "adapters": {"a": "/adapters/a"}})
    defaults = {"max_loras", "max_cpu_loras"}
    assert arguments_of(everything, cpu=False).keys() - {"seed", *defaults} <= OWN_ENGINE_ARGS.keys()


def test_engine_arguments_pass_a_connector_of_vllms_on_when_swap_is_off() -> None:
    """For prefill apart from decode. vLLM takes it as plain values."""
    connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    engine = EngineSettings(extra_args={"kv_transfer_config": connector})
    arguments = arguments_of(engine, cpu=False, swap=SwapSettings(host_bytes=0))
    assert arguments["kv_transfer_config"] == connector
    with pytest.raises(ValueError, match=r"extra_args\.kv_transfer_config"):
        arguments_of(engine, cpu=False, swap=SwapSettings(host_bytes=2**30))


def test_engine_arguments_leave_parallelism_out_when_there_is_one_device() -> None:
    assert not {"tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"} & (
        arguments_of(EngineSettings(), cpu=False).keys()
    )


@pytest.mark.parametrize(
    ("engine", "backend"),
    [
        (EngineSettings(tensor_parallel_size=4, pipeline_parallel_size=2), "mp"),
        (EngineSettings(tensor_parallel_size=4, pipeline_parallel_size=2, multi_node=True), "ray"),
    ],
)
def test_engine_arguments_tell_how_many_devices_and_who_starts_their_workers(
    engine: EngineSettings, backend: str
) -> None:
    arguments = arguments_of(engine, cpu=False)
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (4, 2)
    assert arguments["distributed_executor_backend"] == backend


def test_engine_arguments_switch_lora_on_when_there_are_adapters() -> None:
    assert "enable_lora" not in arguments_of(EngineSettings(), cpu=True)
    assert arguments_of(EngineSettings(adapters={"a": "/adapters/a"}), cpu=True)["enable_lora"] is True
    assert arguments_of(EngineSettings(adapters_dir="/adapters"), cpu=True)["enable_lora"] is True


@pytest.mark.parametrize(
    ("num_listed", "has_directory", "extra", "running", "held"),
    [
        (1, False, {}, 1, 1),
        (9, False, {}, 4, 9),
        (0, True, {}, 4, 16),
        (2, True, {}, 4, 18),
        (1, False, {"max_loras": 8}, 8, 8),
        (0, True, {"max_loras": 32}, 32, 32),
        (0, True, {"max_cpu_loras": 100}, 4, 100),
    ],
)
def test_engine_arguments_give_adapters_places_so_that_none_is_loaded_again(
    num_listed: int, has_directory: bool, extra: dict[str, Any], running: int, held: int
) -> None:
    listed = {f"a{i}": f"/adapters/{i}" for i in range(num_listed)}
    engine = EngineSettings(adapters=listed, adapters_dir="/shelf" if has_directory else None, extra_args=extra)
    arguments = arguments_of(engine, cpu=False)
    assert (arguments["max_loras"], arguments["max_cpu_loras"]) == (running, held)


def test_engine_arguments_refuse_another_worker_extension_where_adapters_need_theirs() -> None:
    engine = EngineSettings(adapters_dir="/shelf", extra_args={"worker_extension_cls": "a.B"})
    assert arguments_of(engine, cpu=False)["worker_extension_cls"] == "a.B"
    with pytest.raises(ValueError, match=r"engine\.extra_args\.worker_extension_cls"):
        arguments_of(engine, cpu=True)


def test_frontend_arguments_are_none_when_nothing_is_set() -> None:
    assert frontend_arguments(EngineSettings()) == {}


def test_frontend_arguments_are_read_by_vllm() -> None:
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    engine = EngineSettings(tool_call_parser="hermes", adapters={"a": "/adapters/a", "b": "org/b"})
    read = FrontendArgs(**frontend_arguments(engine))
    assert (read.tool_call_parser, read.enable_auto_tool_choice) == ("hermes", True)
    assert read.lora_modules is not None
    assert [(lora.name, lora.path) for lora in read.lora_modules] == [("a", "/adapters/a"), ("b", "org/b")]


def test_unknown_arguments_are_named_with_what_may_be_meant() -> None:
    assert unknown_arguments(["seed", "max-num-batched-tokens", "zzzz"], ["seed", "max_num_batched_tokens"]) == [
        "engine.extra_args.max-num-batched-tokens: vLLM has no such argument; is max_num_batched_tokens meant?",
        "engine.extra_args.zzzz: vLLM has no such argument",
    ]


def test_engine_does_not_start_with_an_unknown_argument() -> None:
    arguments = arguments_of(EngineSettings(extra_args={"no_such_argument": 1}), cpu=True)
    with pytest.raises(ValueError, match=r"engine\.extra_args\.no_such_argument: vLLM has no such argument"):
        start_engine(arguments, {}, EngineStatistics())


def test_engine_is_started_with_the_dtype_that_this_machine_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setattr("replicas.engine.multiplies_bfloat16", lambda: False)
    monkeypatch.setattr("replicas.engine.is_cpu_build", lambda: True)
    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda engine_args, **_: engine_args.dtype)
    arguments = arguments_of(EngineSettings(), cpu=True) | {"model": str(make_tiny_model(tmp_path))}
    engine, engine_args = start_engine(arguments, {}, EngineStatistics())
    assert (engine, engine_args.dtype) == ("float32", "float32")


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
    assert known >= OWN_ENGINE_ARGS.keys()
    assert known >= set(CONNECTOR_ARGS)


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

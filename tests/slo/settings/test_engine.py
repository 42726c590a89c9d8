from typing import Any

import pytest
from pydantic import ValidationError

from slo.settings import EngineSettings, SettingsError, parse_settings
from slo.settings.engine import CONNECTOR_ARGS, OWN_ENGINE_ARGS


def test_engine_defaults_are_the_design_tables() -> None:
    engine = EngineSettings()
    assert (engine.max_num_seqs, engine.watermark_ratio, engine.enable_prefix_caching) == (64, 0.05, True)
    unset = (engine.max_model_len, engine.kv_cache_bytes, engine.block_tokens, engine.enforce_eager, engine.cpu_threads)
    assert unset == (None,) * 5
    assert (engine.extra_args, engine.adapters) == ({}, {})


def test_engine_is_one_device_on_one_machine_unless_set() -> None:
    engine = EngineSettings()
    assert (engine.tensor_parallel_size, engine.pipeline_parallel_size, engine.multi_node) == (1, 1, False)
    assert engine.num_devices == 1
    assert EngineSettings(tensor_parallel_size=4, pipeline_parallel_size=2).num_devices == 8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"watermark_ratio": 1}, "watermark_ratio"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes"),
        ({"cpu_threads": 0}, "cpu_threads"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size"),
        ({"multi_node": True, "tensor_parallel_size": 16}, "multi_node=True with pipeline_parallel_size=1"),
        ({"adapters": {" ": "/adapters/a"}}, "an adapter needs a name"),
        ({"adapters": {"a": ""}}, "'a': '': an adapter needs a name, and a directory or a hub name"),
    ],
)
def test_engine_settings_are_refused_when_a_value_is_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineSettings.model_validate(values)


@pytest.mark.parametrize(("name", "reason"), OWN_ENGINE_ARGS.items(), ids=OWN_ENGINE_ARGS)
def test_extra_args_are_refused_with_the_reason_when_expresslane_sets_them(name: str, reason: str) -> None:
    with pytest.raises(ValidationError) as raised:
        EngineSettings(extra_args={name: None, "seed": 1})
    assert f"{name} is not for extra_args: {reason}" in str(raised.value)


def test_extra_args_are_refused_for_each_that_is_ours() -> None:
    with pytest.raises(SettingsError, match=r"model is not .* set model\.source; scheduler_cls is not .* overtake"):
        parse_settings({"engine": {"extra_args": {"scheduler_cls": "x.Y", "model": "m"}}})


@pytest.mark.parametrize(
    "extra_args",
    [
        {"seed": 1, "gpu_memory_utilization": 0.8, "quantization": "fp8"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"max_loras": 4, "max_lora_rank": 64},
        {"decode_context_parallel_size": 2},
    ],
)
def test_extra_args_pass_when_they_are_vllms_alone(extra_args: dict[str, Any]) -> None:
    assert parse_settings({"engine": {"extra_args": extra_args}}).engine.extra_args == extra_args


@pytest.mark.parametrize("host_bytes", [None, 2**30])
@pytest.mark.parametrize("name", CONNECTOR_ARGS)
def test_extra_args_with_a_connector_are_refused_beside_swap(name: str, host_bytes: int | None) -> None:
    with pytest.raises(SettingsError, match=rf"engine.extra_args.{name} with swap.host_bytes={host_bytes}: .*set swap"):
        parse_settings({"engine": {"extra_args": {name: {}}}, "swap": {"host_bytes": host_bytes}})


@pytest.mark.parametrize("name", CONNECTOR_ARGS)
def test_extra_args_with_a_connector_pass_without_swap(name: str) -> None:
    given = {"engine": {"extra_args": {name: {}}}, "swap": {"host_bytes": 0}}
    assert parse_settings(given).engine.connectors() == (name,)


def test_adapters_are_names_that_requests_may_use() -> None:
    settings = parse_settings({"model": {"names": ["base"]}, "engine": {"adapters": {"legal": "/a/legal", "b": "o/b"}}})
    assert settings.model_names == ("base", "legal", "b")
    assert settings.model.served_names == ("base",)


def test_adapters_are_refused_when_one_has_the_models_name() -> None:
    with pytest.raises(SettingsError, match=r"engine\.adapters: base: a name of the model itself"):
        parse_settings({"model": {"names": ["base", "b"]}, "engine": {"adapters": {"base": "/a"}}})


def test_adapters_dir_is_an_absolute_path() -> None:
    assert EngineSettings(adapters_dir="/mnt/adapters").has_adapters
    with pytest.raises(SettingsError, match=r"engine\.adapters_dir='adapters': .*must be an absolute path"):
        parse_settings({"engine": {"adapters_dir": "adapters"}})


@pytest.mark.parametrize(("num_held", "is_refused"), [(1, True), (2, True), (3, False)])
def test_adapters_dir_is_refused_when_those_loaded_at_the_start_leave_no_place(num_held: int, is_refused: bool) -> None:
    values = {
        "adapters": {"a": "/a", "b": "/b"},
        "adapters_dir": "/mnt/adapters",
        "extra_args": {"max_cpu_loras": num_held},
    }
    if not is_refused:
        assert EngineSettings.model_validate(values).adapters_dir == "/mnt/adapters"
        return
    with pytest.raises(ValidationError, match=rf"max_cpu_loras={num_held} and 2 adapters"):
        EngineSettings.model_validate(values)

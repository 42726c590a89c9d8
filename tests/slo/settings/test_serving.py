from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from slo.settings import EngineSettings, IngressSettings, ModelSettings, ReplicaSettings
from slo.settings.serving import OWN_ENGINE_ARGS


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ("SmolLM2-135M-Instruct",)),
        ({"source": "/models/llama-8b"}, ("llama-8b",)),
        ({"source": "/models/llama-8b/"}, ("llama-8b",)),
        ({"source": "./llama"}, ("llama",)),
        ({"source": "~/llama"}, ("llama",)),
        ({"source": "/"}, ("/",)),
        ({"source": "org/name"}, ("org/name",)),
        ({"source": "org/name", "names": ["a", "b"]}, ("a", "b")),
        ({"names": ["a"]}, ("a",)),
    ],
)
def test_served_names_are_those_set_or_one_from_the_source(values: dict[str, Any], names: tuple[str, ...]) -> None:
    assert ModelSettings.model_validate(values).served_names == names


def test_engine_defaults_are_the_design_tables() -> None:
    engine = EngineSettings()
    assert (engine.max_num_seqs, engine.watermark_ratio, engine.enable_prefix_caching) == (64, 0.05, True)
    unset = (engine.max_model_len, engine.kv_cache_bytes, engine.block_tokens, engine.enforce_eager, engine.cpu_threads)
    assert unset == (None,) * 5
    assert engine.extra_args == {}


def test_replica_defaults_let_a_stream_end_and_keep_the_queue_in_the_engine() -> None:
    replicas = ReplicaSettings()
    assert (replicas.num_replicas, replicas.max_ongoing_requests) == (1, 1024)
    assert (replicas.max_generation_s, replicas.graceful_shutdown_timeout_s) == (600, 660)
    assert replicas.num_gpus is None


def test_ingress_defaults() -> None:
    ingress = IngressSettings()
    assert (ingress.num_replicas, ingress.max_ongoing_requests, ingress.max_body_bytes) == (1, 4096, 8 * 1024**2)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        (ModelSettings, {"source": ""}, "source"),
        (ModelSettings, {"names": ["a", " "]}, "must not be empty"),
        (ModelSettings, {"names": ["a", "b", "a"]}, r"given twice: \['a', 'b', 'a'\]"),
        (EngineSettings, {"max_num_seqs": 0}, "max_num_seqs"),
        (EngineSettings, {"watermark_ratio": 1}, "watermark_ratio"),
        (EngineSettings, {"block_tokens": 0}, "block_tokens"),
        (EngineSettings, {"kv_cache_bytes": 0}, "kv_cache_bytes"),
        (EngineSettings, {"cpu_threads": 0}, "cpu_threads"),
        (ReplicaSettings, {"num_replicas": 0}, "num_replicas"),
        (
            ReplicaSettings,
            {"max_generation_s": 660},
            r"graceful_shutdown_timeout_s=660 must exceed max_generation_s=660",
        ),
        (
            ReplicaSettings,
            {"graceful_shutdown_timeout_s": 30},
            r"graceful_shutdown_timeout_s=30 must exceed max_generation_s=600",
        ),
        (IngressSettings, {"max_body_bytes": 0}, "max_body_bytes"),
    ],
)
def test_serving_settings_are_refused_when_a_value_is_out_of_range(
    group: type[BaseModel], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        group.model_validate(values)


@pytest.mark.parametrize("name", sorted(OWN_ENGINE_ARGS))
def test_extra_args_are_refused_when_expresslane_sets_them(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}: set by a key of its own"):
        EngineSettings(extra_args={name: 1, "seed": 1})


def test_extra_args_pass_when_they_are_vllms_alone() -> None:
    assert EngineSettings(extra_args={"seed": 1}).extra_args == {"seed": 1}

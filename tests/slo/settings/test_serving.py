from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from slo.settings import IngressSettings, ModelSettings, ReplicaSettings, SettingsError, parse_settings


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


def test_replica_defaults_let_a_stream_end_and_keep_the_queue_in_the_engine() -> None:
    replicas = ReplicaSettings()
    assert (replicas.num_replicas, replicas.max_ongoing_requests) == (1, 1024)
    assert (replicas.max_generation_s, replicas.graceful_shutdown_timeout_s) == (600, 660)
    assert (replicas.num_gpus, replicas.accelerator_type) == (None, None)


def test_ingress_defaults() -> None:
    ingress = IngressSettings()
    assert (ingress.num_replicas, ingress.max_ongoing_requests, ingress.max_body_bytes) == (1, 4096, 8 * 1024**2)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        (ModelSettings, {"source": ""}, "source"),
        (ModelSettings, {"names": ["a", " "]}, "must not be empty"),
        (ModelSettings, {"names": ["a", "b", "a"]}, r"given twice: \['a', 'b', 'a'\]"),
        (ReplicaSettings, {"num_replicas": 0}, "num_replicas"),
        (ReplicaSettings, {"num_gpus": -1}, "num_gpus"),
        (ReplicaSettings, {"accelerator_type": ""}, "accelerator_type"),
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


@pytest.mark.parametrize(
    ("engine", "replicas"),
    [
        ({}, {}),
        ({}, {"num_gpus": 0}),
        ({}, {"num_gpus": 1, "accelerator_type": "H100"}),
        ({"tensor_parallel_size": 2}, {"num_gpus": 0}),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, {"num_gpus": 4}),
        ({"extra_args": {"gpu_memory_utilization": 0.5}}, {"num_gpus": 0.5}),
        ({"extra_args": {"gpu_memory_utilization": 0.4}}, {"num_gpus": 0.5}),
    ],
)
def test_num_gpus_is_taken_when_the_engine_can_use_them(engine: dict[str, Any], replicas: dict[str, Any]) -> None:
    assert parse_settings({"engine": engine, "replicas": replicas}).replicas.num_gpus == replicas.get("num_gpus")


@pytest.mark.parametrize(
    ("engine", "replicas", "message"),
    [
        ({"tensor_parallel_size": 4}, {"num_gpus": 2}, r"num_gpus=2 with engine.tensor_parallel_size=4 .*: set 4"),
        ({"tensor_parallel_size": 2}, {"num_gpus": 0.5}, r"num_gpus=0.5 with .*: set 2"),
        ({}, {"num_gpus": 8}, r"num_gpus=8: the engine uses one; set engine.tensor_parallel_size"),
        ({}, {"num_gpus": 0, "accelerator_type": "L4"}, r"num_gpus=0 with replicas.accelerator_type='L4'"),
        ({"pipeline_parallel_size": 2, "multi_node": True}, {"num_gpus": 0}, r"num_gpus=0 .*engine.multi_node=True"),
        ({}, {"num_gpus": 0.5}, r"num_gpus=0.5 with engine.extra_args.gpu_memory_utilization=None: set it to 0.5"),
        ({"extra_args": {"gpu_memory_utilization": 0.9}}, {"num_gpus": 0.5}, r"gpu_memory_utilization=0.9: set it to"),
    ],
)
def test_num_gpus_is_refused_when_the_engine_cannot_use_them(
    engine: dict[str, Any], replicas: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings({"engine": engine, "replicas": replicas})

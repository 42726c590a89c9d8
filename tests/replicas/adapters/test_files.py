"""Mutations tried by hand, each found by a test here: a name that leads out of the directory; a stamp without its
size or time; a weight's rank or width not looked at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from replicas.adapters.files import (
    MAX_CONFIG_BYTES,
    AdapterFiles,
    BrokenAdapter,
    find_adapter,
    list_adapters,
    read_config,
    read_through,
)
from tests.tiny_adapter import RANK, make_tiny_adapter
from tests.tiny_model import HIDDEN_SIZE


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """`shelf` with one adapter, and something beside it."""
    make_tiny_adapter(tmp_path / "shelf" / "red")
    make_tiny_adapter(tmp_path / "outside")
    return tmp_path / "shelf"


def found(directory: Path, name: str = "red") -> AdapterFiles:
    files = find_adapter(directory, name)
    assert files is not None
    return files


def test_adapters_are_listed_by_the_names_of_their_directories(directory: Path) -> None:
    (directory / "a-file").write_text("")
    (directory / ".upload").mkdir()
    (directory / "two words").mkdir()
    (directory / "linked").symlink_to(directory.parent / "outside")
    (directory / "dangling").symlink_to(directory / "nowhere")
    assert list_adapters(directory) == ("linked", "red")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside", "red/../../outside", "/etc", "red/", "red\x00", ".upload", "blue", "a" * 129, "röt"],
)
def test_adapter_of_any_other_name_is_not_found(directory: Path, name: str) -> None:
    assert find_adapter(directory, name) is None


def test_adapter_is_not_found_where_no_directory_is(directory: Path) -> None:
    (directory / "a-file").write_text("")
    (directory / "circle").symlink_to(directory / "circle")
    assert [find_adapter(directory, name) for name in ("a-file", "circle")] == [None, None]


def test_adapter_is_another_when_its_files_change_or_its_link_points_elsewhere(directory: Path) -> None:
    (directory / "linked").symlink_to(directory / "red")
    red, linked = found(directory), found(directory, "linked")
    assert found(directory) == red
    assert linked.path == red.path
    os.utime(directory / "red" / "adapter_model.safetensors", ns=(1, 1))
    assert found(directory) != red
    (directory / "linked").unlink()
    (directory / "linked").symlink_to(directory.parent / "outside")
    assert found(directory, "linked") != linked


def test_good_adapter_is_read(directory: Path) -> None:
    assert read_config(found(directory))["r"] == RANK
    read_through(found(directory), RANK, HIDDEN_SIZE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "has no adapter_config.json"),
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        ("{" * 100_000, "no JSON object"),
        ("\xff", "no JSON object"),
        (json.dumps({"peft_type": "LORA", "x": "x" * MAX_CONFIG_BYTES}), "no JSON object"),
        ("{}", "peft_type is not LORA"),
        ('{"peft_type": "IA3"}', "peft_type is not LORA"),
    ],
    ids=range(8),
)
def test_broken_config_is_told(directory: Path, content: str | None, reason: str) -> None:
    path = directory / "red" / "adapter_config.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BrokenAdapter, match=reason):
        read_config(found(directory))


def test_broken_weights_are_told(directory: Path) -> None:
    path = directory / "red" / "adapter_model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:100], b"", b"\xff" * 1000):
        path.write_bytes(content)
        with pytest.raises(BrokenAdapter, match="is damaged"):
            read_through(found(directory), RANK, HIDDEN_SIZE)
    save_file({}, path)
    with pytest.raises(BrokenAdapter, match="is empty"):
        read_through(found(directory), RANK, HIDDEN_SIZE)
    path.unlink()
    with pytest.raises(BrokenAdapter, match=r"has no adapter_model\.safetensors"):
        read_through(found(directory), RANK, HIDDEN_SIZE)


def test_weights_that_do_not_fit_are_told(directory: Path) -> None:
    with pytest.raises(BrokenAdapter, match="rank 4, and max_lora_rank is 3"):
        read_through(found(directory), RANK - 1, HIDDEN_SIZE)
    with pytest.raises(BrokenAdapter, match="made for another model"):
        read_through(found(directory), RANK, 2 * HIDDEN_SIZE)
    path = directory / "red" / "adapter_model.safetensors"
    save_file({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(3)}, path)
    with pytest.raises(BrokenAdapter, match="made for another model"):
        read_through(found(directory), RANK, HIDDEN_SIZE)

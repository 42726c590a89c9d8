from pathlib import Path

import pytest

from sim.calibration import calibrate
from sim.measuring import measure_steps
from tests.tiny_model import make_tiny_model


@pytest.mark.engine
def test_steps_of_a_real_engine_are_measured_in_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    ended: list[int] = []
    steps = measure_steps(
        str(make_tiny_model(tmp_path)),
        num_requests=20,
        max_prompt_tokens=200,
        progress=ended.append,
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        block_size=32,
        max_num_seqs=4,
        max_num_batched_tokens=128,
    )
    assert ended[-1] == 20
    assert all(step.took_ms > 0 for step in steps)
    assert {bool(step.work.prefill_tokens) for step in steps} == {False, True}
    assert max(step.work.num_decodes for step in steps) == 4
    assert max(step.work.prefill_tokens for step in steps) <= 128
    assert calibrate(steps).error.num_steps == len(steps[::3])

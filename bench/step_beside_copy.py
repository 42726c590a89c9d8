"""What a real engine's step costs while KV blocks are copied beside it.

    python -m bench.step_beside_copy

The default model in a real vLLM engine, in one process; the blocks that are copied belong to nobody, the copier is the
one that swaps. Steps without a copy and steps through which one runs take turns, a few at a time, so that other load on
the machine meets both alike. Prints the median step of each, in milliseconds, and their ratio, in Markdown: with a core
left over, as the server leaves one, and with every core at the forward pass, which is the hard case.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from replicas.engine import resolve_dtype
from replicas.models.default import ensure_default_model

BLOCK_TOKENS = 32
KV_CACHE_BYTES = 2**30
DECODES = 8
CONTEXT_TOKENS = 400
CHUNK_TOKENS = 256
TURN_STEPS = 5
TURNS = 20
WARM_UP_TURNS = 2
MOVE_BLOCKS = 64
"""2,048 tokens, 45 MiB of the default model. Further moves are always ready, for as long as the longest step takes."""
MOVES_READY = 64


@dataclass(slots=True)
class Steps:
    """Times of steps, seconds."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def row(self, name: str, threads: int) -> str:
        """As the table shows it."""
        alone_ms, beside_ms = (statistics.median(times) * 1e3 for times in (self.alone, self.beside))
        return f"| {name} | {threads} | {alone_ms:.1f} | {beside_ms:.1f} | {beside_ms / alone_ms:.2f} |"


def main() -> None:
    """Each number of threads has a process of its own: torch takes it as it is imported."""
    cores = psutil.cpu_count() or 1
    print("| step | threads | alone, ms | beside a copy, ms | ratio |\n|" + " --- |" * 5, flush=True)
    for threads in sorted({max(1, cores - 1), cores}):
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "bench.step_beside_copy", "--threads", str(threads)]
        subprocess.run(command, env={**os.environ, **environment}, check=True)


def measure(threads: int) -> None:
    """Measures in this process, whose environment `main` has made."""
    from vllm import LLM

    llm = LLM(
        str(ensure_default_model()),
        dtype=resolve_dtype("auto"),
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        max_num_seqs=DECODES + 1,
        max_num_batched_tokens=CHUNK_TOKENS + DECODES,
        enable_prefix_caching=False,
    )
    engine = llm.llm_engine
    copies = _Copies(engine)
    for name, before_step in (
        (f"{DECODES} decodes", _decodes(engine)),
        (f"{DECODES} decodes and a prefill of {CHUNK_TOKENS} tokens", _prefills(engine)),
    ):
        print(_measured(engine, copies, before_step).row(name, threads), flush=True)
    copies.end()


def _measured(engine: Any, copies: _Copies, before_step: Iterator[None]) -> Steps:
    steps = Steps()
    for turn in range(WARM_UP_TURNS + TURNS):
        for is_beside, times in ((False, steps.alone), (True, steps.beside)):
            for _ in range(TURN_STEPS):
                next(before_step)
                if is_beside:
                    copies.keep_going()
                start_s = time.perf_counter()
                engine.step()
                times.append(time.perf_counter() - start_s)
                if is_beside:
                    copies.check_going()
            copies.wait()
        if turn == WARM_UP_TURNS - 1:
            steps = Steps()
    return steps


def _decodes(engine: Any) -> Iterator[None]:
    """Keeps `DECODES` requests decoding, of about the same context throughout."""
    from vllm import SamplingParams

    ids = itertools.count()
    sampling = SamplingParams(temperature=0, max_tokens=CONTEXT_TOKENS, ignore_eos=True)
    while True:
        while engine.get_num_unfinished_requests() < DECODES:
            engine.add_request(f"decode-{next(ids)}", {"prompt_token_ids": [7] * CONTEXT_TOKENS}, sampling)
            for _ in range(2):
                engine.step()
        yield


def _prefills(engine: Any) -> Iterator[None]:
    """The same, and in each step a whole prompt of `CHUNK_TOKENS` besides."""
    from vllm import SamplingParams

    ids = itertools.count()
    sampling = SamplingParams(temperature=0, max_tokens=1)
    for _ in _decodes(engine):
        engine.add_request(f"prefill-{next(ids)}", {"prompt_token_ids": [9] * CHUNK_TOKENS}, sampling)
        yield


class _Copies:
    """Copies out and in of blocks at the far end of the KV cache, which nobody has come to."""

    def __init__(self, engine: Any) -> None:
        from replicas.kv_swap.copier import BlockCopier

        core = engine.engine_core.engine_core
        config = core.scheduler.kv_cache_config
        layers = core.model_executor.driver_worker.worker.model_runner.compilation_config.static_forward_context
        caches = {name: layers[name].kv_cache for tensor in config.kv_cache_tensors for name in tensor.layers}
        self._copier = BlockCopier(config, caches, MOVE_BLOCKS)
        self._blocks = range(config.num_blocks - MOVE_BLOCKS, config.num_blocks)
        self._ids = itertools.count()

    def keep_going(self) -> None:
        """There is a copy now, and there will be one for as long as a step may take."""
        self._collect()
        while self._copier.num_in_flight < MOVES_READY:
            move_id = next(self._ids)
            if move_id % 2:
                self._copier.start_in(move_id, range(MOVE_BLOCKS), self._blocks)
            else:
                self._copier.start_out(move_id, self._blocks, range(MOVE_BLOCKS))

    def check_going(self) -> None:
        """Raises RuntimeError when the copies have ended before now: the step was not measured beside one."""
        self._collect()
        if not self._copier.num_in_flight:
            raise RuntimeError(f"{MOVES_READY} moves ended within one step: raise MOVES_READY")

    def wait(self) -> None:
        """Until no copy runs."""
        while self._copier.num_in_flight:
            self._collect()
            time.sleep(1e-3)

    def end(self) -> None:
        self._copier.shutdown()

    def _collect(self) -> None:
        for done in self._copier.poll():
            if done.error is not None:
                raise RuntimeError(f"a copy failed: {done.error}")


if __name__ == "__main__":
    if "--threads" in sys.argv:
        measure(int(sys.argv[sys.argv.index("--threads") + 1]))
    else:
        main()

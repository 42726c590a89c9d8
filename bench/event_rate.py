"""How many streamed events a second the load generator reads in time.

    python -m bench.event_rate

A trivial server of its own, in another process, sends every stream an event each 20 ms, as a model does that keeps P0's
promise; the streams become more until the generator's lag exceeds the 10 ms that a scenario allows it. Prints Markdown:
events a second as read, the CPU time of the generator's one process, and its lag at P99. Give it two idle cores.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.benchmark import open_benchmark
from bench.run import Unwatched
from bench.scenario_file import parse_scenario
from bench.table import lag_ms

STREAMS = (100, 200, 300, 400, 500, 600, 800, 1000, 1200, 1600)
TOKENS = 250
SCENARIO: Mapping[str, Any] = {
    "model": "none",
    "seed": 1,
    "endpoint": "completions",
    "warm_up_s": 2,
    "duration_s": 8,
    "classes": [
        {"name": "stream", "rate": 1, "source": {"kind": "synthetic", "prompt_tokens": 16, "output_tokens": TOKENS}}
    ],
}
GAP_TICKS = 20
TICK_S = 1e-3
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = {
    "id": "cmpl-0123456789abcdef0123456789abcdef",
    "object": "text_completion",
    "created": 1_700_000_000,
    "model": "none",
    "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "stop_reason": None}],
    "usage": None,
}
"""As vLLM writes one."""


def main() -> None:
    """Prints a row for each number of streams, up to the first that is too many."""
    print("| streams | events/s | CPU, of a core | lag p99, ms |\n| --- | --- | --- | --- |", flush=True)
    with _server() as url:
        for streams in STREAMS:
            scenario = parse_scenario({**SCENARIO, "url": url, "streams": streams})
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            figures = open_benchmark(scenario, [], {}).run(1, 0, Unwatched()).figures
            cpu_ratio = (time.process_time() - cpu_s) / (time.perf_counter() - begun_s)
            print(f"| {streams} | {figures.tokens_per_s:,.0f} | {cpu_ratio:.0%} | {lag_ms(figures):.1f} |", flush=True)
            if not figures.kept_up:
                break


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.event_rate", "--server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


class Pacer:
    """Writes an event to each open stream, every `GAP_TICKS` ticks; streams take different ticks."""

    def __init__(self) -> None:
        self._by_tick: list[dict[asyncio.StreamWriter, int]] = [{} for _ in range(GAP_TICKS)]
        self._num_begun = 0
        self._event = _chunk(EVENT)

    def begin(self, writer: asyncio.StreamWriter, num_tokens: int) -> None:
        writer.write(HEAD)
        self._by_tick[self._num_begun % GAP_TICKS][writer] = num_tokens
        self._num_begun += 1

    async def run(self) -> None:
        """Until cancelled. A tick that comes late is not left out."""
        begun_s, tick = time.perf_counter(), 0
        while True:
            self._tick(self._by_tick[tick % GAP_TICKS])
            tick += 1
            await asyncio.sleep(max(0.0, begun_s + tick * TICK_S - time.perf_counter()))

    def _tick(self, streams: dict[asyncio.StreamWriter, int]) -> None:
        for writer, num_left in list(streams.items()):
            if writer.is_closing():
                del streams[writer]
            elif num_left:
                writer.write(self._event)
                streams[writer] = num_left - 1
            else:
                usage = {"prompt_tokens": 16, "completion_tokens": TOKENS}
                writer.write(_chunk({**EVENT, "choices": [], "usage": usage}) + _chunk("[DONE]") + b"0\r\n\r\n")
                del streams[writer]


def _chunk(content: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    event = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _serve() -> None:
    pacer = Pacer()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                pacer.begin(writer, body["max_tokens"])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=max(STREAMS))
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await pacer.run()


if __name__ == "__main__":
    if "--server" in sys.argv:
        asyncio.run(_serve())
    else:
        main()

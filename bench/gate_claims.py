"""The product's claims about load that is too much, and about its own way to the engine, each measured in one run.

    python -m bench.gate_claims [overload] [flood] [path] [--seconds 60] [--slots 8]

Starts what is needed on this machine, one part after the other, and prints Markdown: ratios to the same run's quiet
figures, or to vLLM's own server beside it. Ratios travel between machines, times do not. Progress goes to standard
error. The loads are the scenarios of the same names; what the machine can do is measured first, by a closed loop of
twice as many streams as there are run slots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from app.gate.keys import hash_key, new_key
from app.main import INGRESS_DEPLOYMENT
from bench.claims import HEADER, Claim, flood_claims, overload_claims, path_claims, reachable
from bench.compare.contender_file import load_contender
from bench.compare.server import running
from bench.compare.sizes import DEFAULT_SLOTS, Sizes
from bench.runs import Runs, expresslane, say
from bench.scenario import Targets
from bench.scenario_file import load_scenario

SECONDS = 60.0
OVERLOAD = 2.0
QUIET_RATIO = 0.1
"""The quiet tenant's part of what the server can do; the flood is twenty times that, twice what it can do."""
PATH_STREAMS = 64
PATH_ROUNDS = 3
ADMISSION = "{p0: {queue_timeout_s: 2}, p1: {queue_timeout_s: 10}, p2: {queue_timeout_s: 20}}"
"""Short waits, so that a run of a minute reaches the steady state of an overload."""
TENANTS = {"QUIET_API_KEY": "quiet", "FLOOD_API_KEY": "flood"}


def measure_overload(sizes: Sizes, seconds: float) -> list[Claim]:
    """P0 within twice what the server can do, against P0 alone at the same rate.

    With targets that this machine can keep, for the scheduler too: those of P0 when it fills every slot, and room.
    """
    scenario = load_scenario("overload")
    with expresslane(sizes, admission=ADMISSION) as started:
        load: dict[str, Any] = {"streams": sizes.slots, "warm_up_s": seconds / 6, "duration_s": seconds / 2}
        full_house = Runs(started).run("overload", only=["P0"], **load)
    targets = reachable(scenario.classes[0].targets, full_house.figures.of("P0"))
    promised = f"scheduler: {json.dumps({'targets': all_targets(targets)})}"
    with expresslane(sizes, admission=ADMISSION, further=promised) as started:
        server = Runs(started)
        capacity = server.capacity("overload", sizes.slots, seconds)
        load = {"rate": OVERLOAD * capacity, "warm_up_s": seconds / 6, "duration_s": seconds}
        alone = server.run("overload", only=["P0"], **load)
        server.run("overload", **load | {"duration_s": seconds / 3})  # what the ingress first grows to
        mib_before = ingress_mib()
        loaded = server.run("overload", **load)
        mib_after = ingress_mib()
    return overload_claims(alone, loaded, scenario, targets, capacity, (mib_before, mib_after))


def all_targets(p0: Targets) -> dict[str, dict[str, float]]:
    """P0's, and those of P1 and P2 as many times as large as in the product (500 / 100 and 100 / 20 ms; 200 / 20)."""
    ttft_ms, tbt_ms = p0.ttft_ms or 0.0, p0.tbt_ms or 0.0
    return {
        "p0": {"ttft_p99_ms": ttft_ms, "tbt_p99_ms": tbt_ms},
        "p1": {"ttft_p99_ms": 5 * ttft_ms, "tbt_p99_ms": 5 * tbt_ms},
        "p2": {"tbt_p99_ms": 10 * tbt_ms},
    }


def measure_flood(sizes: Sizes, seconds: float) -> list[Claim]:
    """A quiet tenant's TTFT beside one that floods the same class, against the quiet one alone."""
    keys = {variable: new_key() for variable in TENANTS}
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as directory:
        file = Path(directory) / "keys.yaml"
        tenants = [{"name": name, "keys_sha256": [hash_key(keys[v])]} for v, name in TENANTS.items()]
        file.write_text(yaml.safe_dump({"tenants": tenants}))
        with expresslane(sizes, admission=ADMISSION, further=f"tenants: {{keys_file: {file}}}") as started:
            server = Runs(started, keys)
            speed = QUIET_RATIO * server.capacity("flood", sizes.slots, seconds)
            load: dict[str, Any] = {"warm_up_s": seconds / 6, "duration_s": seconds}
            alone = server.run("flood", speed, only=["quiet"], **load)
            both = server.run("flood", speed, **load)
    return flood_claims(alone.figures, both.figures)


def measure_path(sizes: Sizes, seconds: float) -> list[Claim]:
    """The same requests to Expresslane and to vLLM's own server, both running, in turns."""
    sizes = sizes.model_copy(update={"slots": PATH_STREAMS})
    with expresslane(sizes) as ours, running(load_contender("fcfs"), sizes) as bare:
        servers = [Runs(ours), Runs(bare)]
        ttfts_ms: list[list[float]] = [[], []]
        tokens_per_s: list[list[float]] = [[], []]
        for _ in range(PATH_ROUNDS):
            for i, server in enumerate(servers):
                one = server.run("first_token", duration_s=seconds / 2).figures.of("stream")
                many = server.run("path", streams=PATH_STREAMS, duration_s=seconds / 2).figures
                if one.ttft is None:
                    raise RuntimeError(f"nothing was answered in {seconds / 2:g} s; {one.errors or 'longer --seconds'}")
                say(f"  TTFT p50 of {one.ttft.count}: {one.ttft.p50_ms:.1f} ms")
                ttfts_ms[i].append(one.ttft.p50_ms)
                tokens_per_s[i].append(many.tokens_per_s)
    return path_claims(*map(statistics.median, ttfts_ms), *map(statistics.median, tokens_per_s))


PARTS: Mapping[str, Callable[[Sizes, float], list[Claim]]] = {
    "overload": measure_overload,
    "flood": measure_flood,
    "path": measure_path,
}


def ingress_mib() -> float:
    """Resident memory of the ingress processes that this one has started, MiB.

    Raises:
        RuntimeError: there are none.
    """
    ours = psutil.Process().children(recursive=True)
    ingresses = [p for p in ours if f":{INGRESS_DEPLOYMENT}" in " ".join(p.cmdline())]
    if not ingresses:
        raise RuntimeError("no ingress process was found among this one's children")
    return float(sum(p.memory_info().rss for p in ingresses)) / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the parts named, all of them unless told, and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gate_claims", description="The product's claims, measured.")
    parser.add_argument("parts", nargs="*", metavar="overload|flood|path")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Of each measured run.")
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS, help="Of the engine, in overload and flood.")
    given = parser.parse_args(arguments)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    sizes = Sizes(slots=given.slots)
    print(HEADER, flush=True)
    for part in given.parts or PARTS:
        say(f"{part}: starting")
        for claim in PARTS[part](sizes, given.seconds):
            print(claim.row(), flush=True)


if __name__ == "__main__":
    main()

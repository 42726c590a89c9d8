#!/usr/bin/env bash
# Makes the lock files anew from pyproject.toml: `make lock`. Needs the configured package index; installs nothing.
#   cpu.lock, gpu.lock: everything that runs, by extra.  dev.lock: what the tests need beside either.
# The CPU build of torch is not in cpu.lock: it comes from an index of its own (see install.sh), as a wheel for each
# architecture, so its version is pinned there and its hash is not.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${1:?usage: requirements/lock.sh PATH-OF-UV}

compile() { # compile OUTPUT ARGUMENT...
    "$uv" pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
        --no-annotate --no-header -o "$@" pyproject.toml
}

compile requirements/cpu.lock --extra cpu --overrides requirements/cpu-excluded.txt --no-emit-package torch
compile requirements/gpu.lock --extra gpu --overrides requirements/gpu-excluded.txt
mapfile -t shared < <(grep -oE '^[a-z0-9][a-z0-9._-]*' requirements/cpu.lock | sort -u)
compile requirements/dev.lock --extra dev --overrides requirements/cpu-excluded.txt -c requirements/cpu.lock \
    "${shared[@]/#/--no-emit-package=}"

#!/usr/bin/env bash
# Makes the virtual environment and installs the locked dependencies, unless that was done already.
# usage: requirements/install.sh VENV cpu|gpu [dev]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: requirements/install.sh VENV cpu|gpu [dev]}
extra=${2:?cpu or gpu}
dev=${3:-}
torch_cpu=torch==2.13.0+cpu
torch_cpu_index=https://download.pytorch.org/whl/cpu

locks=("requirements/$extra.lock" ${dev:+requirements/dev.lock})
want=$(cat requirements/*.lock requirements/install.sh pyproject.toml | sha256sum | cut -d' ' -f1)
stamp="$venv/.installed-$extra"
if [ "$(cat "$stamp${dev:+-dev}" 2>/dev/null)" = "$want" ]; then exit 0; fi

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "error: Python 3.11 is needed; $python is $("$python" --version 2>&1). Set PYTHON= to one." >&2
    exit 1
}

echo "expresslane: installing the $extra dependencies${dev:+ and the test tools} into $venv (once; several minutes)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
if [ "$extra" = cpu ]; then
    pip install --no-deps "$torch_cpu" || pip install --no-deps --index-url "$torch_cpu_index" "$torch_cpu"
fi
for lock in "${locks[@]}"; do
    pip install --no-deps --require-hashes -r "$lock"
done
if [ -n "${DEPENDENCIES_ONLY:-}" ]; then exit 0; fi # an image adds the application itself
pip install --no-deps --no-build-isolation -e .
echo "$want" >"$stamp"
if [ -n "$dev" ]; then echo "$want" >"$stamp-dev"; fi

#!/usr/bin/env bash
# Installs the Debian packages that the tests need beside Python's, unless their commands are there already: promtool
# judges the alert rules and the dashboard, Chromium shows the status page.
# usage: requirements/system.sh
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need promtool prometheus
need chromium chromium
need chromedriver chromium-driver
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

fail() {
    echo "error: the tests need ${missing[*]} (Debian's package names), and $1." >&2
    echo "Install them yourself, such as by: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
}
command -v apt-get >/dev/null || fail "there is no apt-get"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "that takes root, or sudo"
    as_root=(sudo)
fi

# Of the package prometheus only promtool is wanted: without its unit and its init script no server starts, now or later.
options=(
    -o 'Dpkg::Options::=--path-exclude=*/systemd/system/prometheus.service'
    -o 'Dpkg::Options::=--path-exclude=/etc/init.d/prometheus'
)
echo "expresslane: installing ${missing[*]} for the tests"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${options[@]}" "${missing[@]}"

"""A real keeper; `test_server` has what it does for a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 60
WAITS_FOR_AN_ORPHAN = """
orphan=$(bash -c 'sleep 0.3 > /dev/null & echo $!')
while kill -0 $orphan 2> /dev/null; do sleep 0.05; done
exit 7
"""


def keeper(directory: Path, *command: str, grace_s: str = "5") -> list[str]:
    return [sys.executable, "-m", "bench.compare.keeper", str(directory), grace_s, *command]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("bash", "-c", WAITS_FOR_AN_ORPHAN), 7),
        (("bash", "-c", "kill -9 $$"), 137),
        (("/no/such/program",), 127),
    ],
)
def test_keeper_ends_with_its_command(tmp_path: Path, command: tuple[str, ...], status: int) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    with subprocess.Popen(keeper(directory, *command), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.wait(LIMIT_S) == status
    assert not directory.exists()


@pytest.mark.parametrize(("trapped", "status"), [("exit 5", 5), ("true", 137)])
def test_command_may_end_in_its_own_way_for_so_long(tmp_path: Path, trapped: str, status: int) -> None:
    script = f"trap '{trapped}' INT; trap '' TERM; echo ready; while true; do sleep 0.05; done"
    command = keeper(tmp_path, "bash", "-c", script, grace_s="1" if status != 5 else str(LIMIT_S))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == status

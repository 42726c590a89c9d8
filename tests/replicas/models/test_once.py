import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from replicas.models.once import is_complete, make_directory_once

FILES = ("config.json", "weights")


def build(directory: Path) -> None:
    for name in FILES:
        (directory / name).write_text("whole")


def make(target: Path, build: Callable[[Path], None] = build) -> Path:
    return make_directory_once(target, family="model", required_files=FILES, build=build, progress=lambda _: None)


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.endswith(".lock"))


# Kills itself at the point that argv names, or builds to the end; counts its builds in a file beside the target.
PROCESS = """
import os, signal, sys
from pathlib import Path
from replicas.models import once

target, point = Path(sys.argv[1]), sys.argv[2]

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def build(directory):
    with (target.parent.parent / "builds").open("a") as file:
        file.write("build\\n")
    if point == "before_files":
        die()
    (directory / "config.json").write_text("whole")
    with (directory / "weights").open("w") as file:
        file.write("who")
        file.flush()
        if point == "within_a_file":
            die()
        file.write("le")
    if point == "hold":
        print("building", flush=True)
        sys.stdin.readline()

if point == "before_flush":
    once._flush = die
if point == "before_rename":
    os.rename = die
if point == "after_rename":
    rename = os.rename
    os.rename = lambda *arguments: (rename(*arguments), die())
def progress(line):
    print(line, flush=True)

once.make_directory_once(
    target, family="model", required_files=("config.json", "weights"), build=build, progress=progress
)
print("made", flush=True)
"""


def start(target: Path, point: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(target), point],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_make_directory_once_gives_the_built_directory_its_name(tmp_path: Path) -> None:
    assert make(tmp_path / "models" / "model-1") == tmp_path / "models" / "model-1"
    assert is_complete(tmp_path / "models" / "model-1", FILES)
    assert visible(tmp_path / "models") == ["model-1"]


def test_make_directory_once_builds_no_second_time(tmp_path: Path) -> None:
    def refuse(_directory: Path) -> None:
        raise AssertionError("built again")

    make(tmp_path / "model-1")
    assert make(tmp_path / "model-1", refuse) == tmp_path / "model-1"


@pytest.mark.parametrize("point", ["before_files", "within_a_file", "before_flush", "before_rename"])
def test_make_directory_once_leaves_nothing_finished_when_killed(tmp_path: Path, point: str) -> None:
    target = tmp_path / "models" / "model-1"
    with start(target, point) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not target.exists()
    assert visible(target.parent) == [".model-1.partial"]

    make(tmp_path / "models" / "model-2")
    assert visible(target.parent) == ["model-2"]
    make(target)
    assert is_complete(target, FILES)


def test_make_directory_once_leaves_a_whole_directory_when_killed_after_the_rename(tmp_path: Path) -> None:
    target = tmp_path / "models" / "model-1"
    with start(target, "after_rename") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [(target / name).read_text() for name in FILES] == ["whole", "whole"]
    assert visible(target.parent) == ["model-1"]


def test_make_directory_once_builds_once_when_two_processes_ask(tmp_path: Path) -> None:
    target = tmp_path / "models" / "model-1"
    with start(target, "hold") as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "building\n"
        with start(target, "none") as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("waiting for another process")
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "made\n"
            assert second.stdout.readline() == "made\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "builds").read_text() == "build\n"


def test_make_directory_once_lets_the_waiting_process_build_when_the_first_is_killed(tmp_path: Path) -> None:
    target = tmp_path / "models" / "model-1"
    with start(target, "hold") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        with start(target, "none") as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("waiting for another process")
            first.kill()
            assert second.stdout.readline() == "made\n"
    assert second.returncode == 0
    assert is_complete(target, FILES)


def test_make_directory_once_removes_what_a_failed_build_left(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "config.json").write_text("whole")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        make(tmp_path / "model-1", fail)
    assert visible(tmp_path) == []


def test_make_directory_once_refuses_a_build_that_lacks_a_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="weights missing or empty"):
        make(tmp_path / "model-1", lambda directory: (directory / "config.json").touch())
    assert visible(tmp_path) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")])
def test_make_directory_once_builds_anew_when_a_file_is_gone_or_empty(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(make(tmp_path / "model-1") / "weights")
    make(tmp_path / "model-1")
    assert is_complete(tmp_path / "model-1", FILES)
    assert visible(tmp_path) == ["model-1"]

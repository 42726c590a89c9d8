"""Files of swapped KV: what is read is what was written, or an error, and nobody else's files are touched.

Mutations tried, each failing here: the digest not compared, without the header, without the chunk's place; the size not
compared; the header not compared; a file visible before it is whole; a part left behind after an error; the bound not
kept, or dropped files still counted; others' files deleted; a living worker's files deleted; a dead one's kept; a lock
of another boot taken for a dead worker's; files that others may read; links followed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.kv_swap import directory as directory_module
from replicas.kv_swap.directory import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    DamagedFileError,
    FileShape,
    SwapDirectory,
    blocks_within,
    file_bytes,
)

BLOCK_BYTES = 40
CHUNK_BLOCKS = 3
SHAPE = FileShape(file_id=7, num_blocks=8, block_bytes=BLOCK_BYTES)
HEADER_BYTES = 40
MAX_BYTES = 10_000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "CHUNK_BYTES", CHUNK_BLOCKS * BLOCK_BYTES)


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[SwapDirectory]:
    made = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    yield made
    made.close()


def content(chunk: int, shape: FileShape = SHAPE) -> list[bytes]:
    """A chunk's bytes in two pieces, as of two regions of which the first has a quarter."""
    num_blocks = min(shape.chunk_blocks, shape.num_blocks - chunk * shape.chunk_blocks)
    marker = shape.file_id * 16 + chunk
    return [
        bytes([marker]) * (num_blocks * BLOCK_BYTES // 4),
        bytes([255 - marker]) * (num_blocks * BLOCK_BYTES * 3 // 4),
    ]


def num_chunks(shape: FileShape = SHAPE) -> int:
    return -(-shape.num_blocks // shape.chunk_blocks)


def write(swap: SwapDirectory, shape: FileShape = SHAPE) -> Path:
    with swap.create(shape) as file:
        for chunk in range(num_chunks(shape)):
            file.write_chunk([memoryview(part) for part in content(chunk, shape)])
    return swap.path / f"{shape.file_id}.kv"


def read(swap: SwapDirectory, chunk: int, shape: FileShape = SHAPE) -> list[bytes]:
    parts = [bytearray(len(part)) for part in content(chunk, shape)]
    with swap.open(shape.file_id) as file:
        file.read_chunk(chunk, [memoryview(part) for part in parts])
    return [bytes(part) for part in parts]


def read_all(swap: SwapDirectory) -> list[list[bytes]]:
    return [read(swap, chunk) for chunk in range(num_chunks())]


def test_file_gives_back_what_was_written(swap: SwapDirectory) -> None:
    path = write(swap)
    assert [read(swap, chunk) for chunk in (2, 0, 1)] == [content(2), content(0), content(1)]
    assert path.stat().st_size == SHAPE.num_bytes == file_bytes(8, BLOCK_BYTES) == HEADER_BYTES + 8 * 40 + 3 * 16
    assert swap.used_bytes == SHAPE.num_bytes


def test_file_without_blocks_is_a_header(swap: SwapDirectory) -> None:
    empty = FileShape(1, 0, BLOCK_BYTES)
    assert write(swap, empty).stat().st_size == HEADER_BYTES
    with swap.open(1):
        pass


@given(st.integers(0, 40), st.integers(1, 300))
def test_blocks_within_is_the_most_that_fit(num_blocks: int, block_bytes: int) -> None:
    size = file_bytes(num_blocks, block_bytes)
    assert blocks_within(size, block_bytes) == num_blocks
    assert blocks_within(size - 1, block_bytes) == max(0, num_blocks - 1)


def test_chunk_has_at_least_one_block_and_passes_through_little_memory() -> None:
    assert FileShape(0, 1, CHUNK_BLOCKS * BLOCK_BYTES * 10).chunk_blocks == 1
    assert CHUNK_BYTES == 4 * 2**20


def damages() -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    """Each part of a file damaged, one bit at its start and at its end; bytes lost or added; chunks exchanged."""
    chunk_bytes = CHUNK_BLOCKS * BLOCK_BYTES + DIGEST_BYTES
    parts = {"magic": 0, "version": 8, "chunk_blocks": 12, "file_id": 16, "num_blocks": 24, "block_bytes": 32}
    parts |= {f"chunk {c}": HEADER_BYTES + c * chunk_bytes for c in range(3)}
    parts |= {f"digest {c}": HEADER_BYTES + (c + 1) * chunk_bytes - DIGEST_BYTES for c in range(2)}
    parts |= {"last digest": SHAPE.num_bytes - DIGEST_BYTES, "last byte": SHAPE.num_bytes - 1}
    for name, at in parts.items():
        yield name, lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield "truncated", lambda data: data[:-1]
    yield "truncated to whole chunks", lambda data: data[: HEADER_BYTES + chunk_bytes]
    yield "empty", lambda _: b""
    yield "longer", lambda data: data + b"\0"
    first, second = HEADER_BYTES, HEADER_BYTES + chunk_bytes
    yield (
        "chunks exchanged",
        lambda data: (
            data[:first] + data[second : second + chunk_bytes] + data[first:second] + data[second + chunk_bytes :]
        ),
    )
    yield "zeros", lambda data: bytes(len(data))


@pytest.mark.parametrize("damage", [d[1] for d in damages()], ids=[d[0] for d in damages()])
def test_damaged_file_is_an_error_and_never_other_bytes(swap: SwapDirectory, damage: Callable[[bytes], bytes]) -> None:
    path = write(swap)
    path.write_bytes(damage(path.read_bytes()))
    errors = 0
    for chunk in range(num_chunks()):
        try:
            assert read(swap, chunk) == content(chunk)
        except DamagedFileError:
            errors += 1
    assert errors


def test_damaged_byte_is_an_error_wherever_it_is(swap: SwapDirectory) -> None:
    path = write(swap)
    whole = path.read_bytes()
    for at in range(SHAPE.num_bytes):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        with pytest.raises(DamagedFileError):
            read_all(swap)


def test_file_of_another_move_is_an_error(swap: SwapDirectory) -> None:
    other = FileShape(8, 8, BLOCK_BYTES)
    path, others_path = write(swap), write(swap, other)
    path.write_bytes(others_path.read_bytes())
    with pytest.raises(DamagedFileError, match="header"):
        read(swap, 0)


def test_chunk_of_another_move_is_an_error(swap: SwapDirectory) -> None:
    path, others_path = write(swap), write(swap, FileShape(8, 8, BLOCK_BYTES))
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + others_path.read_bytes()[HEADER_BYTES:])
    with pytest.raises(DamagedFileError, match="chunk 0"):
        read(swap, 0)


def test_missing_file_is_an_error(swap: SwapDirectory) -> None:
    with pytest.raises(FileNotFoundError):
        read(swap, 0)
    write(swap).unlink()
    with pytest.raises(FileNotFoundError):
        read(swap, 0)


def test_unreadable_file_is_an_error(swap: SwapDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, which may read everything."""
    path = write(swap)
    path.chmod(0)
    if os.access(path, os.R_OK):

        def refuse(path: Path, flags: int, mode: str) -> None:
            raise PermissionError(13, f"Permission denied ({flags}, {mode})", str(path))

        monkeypatch.setattr(directory_module, "_open_private", refuse)
    with pytest.raises(PermissionError):
        read(swap, 0)


def test_link_in_a_files_place_is_not_followed(swap: SwapDirectory, tmp_path: Path) -> None:
    path = write(swap)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        read(swap, 0)


def test_files_are_their_owners_alone(swap: SwapDirectory) -> None:
    path = write(swap)
    assert path.stat().st_mode & 0o777 == 0o600
    assert swap.path.stat().st_mode & 0o777 == 0o700


def test_file_is_not_there_before_it_is_whole(swap: SwapDirectory) -> None:
    with swap.create(SHAPE) as file:
        file.write_chunk([memoryview(part) for part in content(0)])
        assert not (swap.path / "7.kv").exists()
        with pytest.raises(FileNotFoundError):
            read(swap, 0)
        for chunk in (1, 2):
            file.write_chunk([memoryview(part) for part in content(chunk)])
    assert read(swap, 0) == content(0)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_file_that_is_not_whole_leaves_nothing_behind(swap: SwapDirectory, error: BaseException) -> None:
    def stop() -> None:
        with swap.create(SHAPE) as file:
            file.write_chunk([memoryview(part) for part in content(0)])
            raise error

    with pytest.raises(type(error)):
        stop()
    assert [path.name for path in swap.path.iterdir()] == ["lock"]
    assert swap.used_bytes == 0
    write(swap)
    assert read(swap, 0) == content(0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_an_error(swap: SwapDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "_open_private", lambda *_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        write(swap)


def test_file_beyond_the_bound_is_an_error_until_others_are_dropped(tmp_path: Path) -> None:
    swap = SwapDirectory(tmp_path, "engine-1", 0, 2 * SHAPE.num_bytes)
    write(swap)
    write(swap, FileShape(8, 8, BLOCK_BYTES))
    with pytest.raises(OSError, match=r"swap\.directory_bytes leaves no room"):
        write(swap, FileShape(9, 0, BLOCK_BYTES))
    swap.drop(7)
    swap.drop(7)
    write(swap, FileShape(9, 8, BLOCK_BYTES))
    assert swap.used_bytes == 2 * SHAPE.num_bytes
    swap.close()


def test_close_deletes_our_files_and_nobody_elses(tmp_path: Path) -> None:
    swap = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    write(swap)
    (swap.path / "9.kv.part").touch()
    theirs = [swap.path / "notes.txt", tmp_path / "10.kv", tmp_path / "other" / "1.kv"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
    swap.close()
    swap.close()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(theirs)


def test_close_leaves_an_empty_root(tmp_path: Path) -> None:
    swap = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    write(swap)
    swap.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("engine_id", "rank"), [("engine-1", 1), ("engine-2", 0)])
def test_two_workers_on_one_directory_do_not_touch_each_other(tmp_path: Path, engine_id: str, rank: int) -> None:
    first = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    write(first)
    second = SwapDirectory(tmp_path, engine_id, rank, MAX_BYTES)
    write(second)
    assert first.path != second.path
    second.close()
    assert [read(first, chunk) for chunk in range(3)] == [content(chunk) for chunk in range(3)]
    first.close()


def test_second_worker_of_one_name_is_refused_and_harms_nothing(swap: SwapDirectory, tmp_path: Path) -> None:
    write(swap)
    with pytest.raises(OSError, match="another worker holds this swap directory"):
        SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    assert read(swap, 0) == content(0)


KILLED = """
import sys
from pathlib import Path
from replicas.kv_swap.directory import FileShape, SwapDirectory
swap = SwapDirectory(Path(sys.argv[1]), "killed", 0, 10000)
with swap.create(FileShape(1, 0, 40)):
    pass
(swap.path / "2.kv.part").touch()
"""


def test_start_deletes_what_a_killed_worker_left_behind(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, cwd=Path(__file__).parents[3])
    assert len(list(tmp_path.rglob("*.kv*"))) == 2
    swap = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    assert list(tmp_path.iterdir()) == [swap.path]
    swap.close()


def test_start_leaves_directories_of_other_names_whatever_is_in_them(tmp_path: Path) -> None:
    theirs = tmp_path / "checkpoints-0"
    theirs.mkdir()
    (theirs / "1.kv").write_text("theirs")
    (theirs / "lock").write_bytes(directory_module._boot_id())
    SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES).close()
    assert (theirs / "1.kv").read_text() == "theirs"


@pytest.mark.parametrize("lock", [None, b"", b"of another boot"], ids=["no lock", "empty lock", "another boot"])
def test_start_leaves_what_may_belong_to_a_worker_of_another_machine(tmp_path: Path, lock: bytes | None) -> None:
    remote = tmp_path / "expresslane-kv-remote-0"
    remote.mkdir()
    (remote / "1.kv").write_text("theirs")
    if lock is not None:
        (remote / "lock").write_bytes(lock)
    SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES).close()
    assert (remote / "1.kv").read_text() == "theirs"


def test_start_cleans_its_own_sub_directory(tmp_path: Path) -> None:
    own = tmp_path / "expresslane-kv-engine-1-0"
    own.mkdir()
    for name in ("1.kv", "2.kv.part", "notes.txt"):
        (own / name).touch()
    swap = SwapDirectory(tmp_path, "engine-1", 0, MAX_BYTES)
    assert sorted(path.name for path in own.iterdir()) == ["lock", "notes.txt"]
    swap.close()


@pytest.mark.parametrize("engine_id", ["../../etc", "a/b", "..", "with space", "ünïcode"])
def test_sub_directory_stays_in_the_root_whatever_the_engine_is_called(tmp_path: Path, engine_id: str) -> None:
    swap = SwapDirectory(tmp_path, engine_id, 0, MAX_BYTES)
    assert swap.path.parent == tmp_path
    assert list(tmp_path.iterdir()) == [swap.path]
    swap.close()


def test_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("not mounted", "file"):
        with pytest.raises(NotADirectoryError, match=r"swap\.directory is no directory: .*" + name):
            SwapDirectory(tmp_path / name, "engine-1", 0, MAX_BYTES)

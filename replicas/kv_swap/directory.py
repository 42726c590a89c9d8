"""The second tier: swapped KV as files, one a move and worker, in a directory that may be on a shared file system.

Each worker writes in a sub-directory of its own, which it holds locked, and touches no other name than its own. A file
becomes visible when it is whole. It is a header and chunks; each chunk carries a digest of the header, of its place and
of its bytes, so what is read is what was written there, or an error: damage, truncation and a full disk are never
wrong bytes. Files do not outlive the worker: nothing is synced to disk, and all are deleted at its end, those of a
worker that was killed by the next one that starts on the same machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from blake3 import blake3  # comes with vLLM; 4.7 GB/s on one core here, where hashlib's blake2b does 0.9

MAGIC: Final = b"XLKVSWAP"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQQ")
DIGEST_BYTES: Final = 16
CHUNK_BYTES: Final = 4 * 2**20
"""A chunk holds as many blocks as fit into so much, and at least one. It passes through memory of that size."""
_SUB_DIRECTORY: Final = re.compile(r"expresslane-kv-[A-Za-z0-9._-]+-\d+")
_OUR_FILE: Final = re.compile(r"\d+\.kv(\.part)?")
_LOCK: Final = "lock"


class DamagedFileError(OSError):
    """A file is not what was written."""


@dataclass(frozen=True, slots=True)
class FileShape:
    """What a file holds.

    Attributes:
        block_bytes: of one block in one worker.
    """

    file_id: int
    num_blocks: int
    block_bytes: int

    @property
    def chunk_blocks(self) -> int:
        """Blocks of a chunk; the last one may have fewer."""
        return max(1, CHUNK_BYTES // self.block_bytes)

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        return _HEADER.pack(MAGIC, VERSION, self.chunk_blocks, self.file_id, self.num_blocks, self.block_bytes)

    @property
    def num_bytes(self) -> int:
        """The whole file."""
        num_chunks = -(-self.num_blocks // self.chunk_blocks)
        return _HEADER.size + self.num_blocks * self.block_bytes + num_chunks * DIGEST_BYTES

    def offset_of(self, chunk: int) -> int:
        """Where a chunk starts, bytes."""
        return _HEADER.size + chunk * (self.chunk_blocks * self.block_bytes + DIGEST_BYTES)


def file_bytes(num_blocks: int, block_bytes: int) -> int:
    """The size of a file that holds so many blocks of one worker."""
    return FileShape(0, num_blocks, block_bytes).num_bytes


def blocks_within(max_bytes: int, block_bytes: int) -> int:
    """The most blocks whose file has at most `max_bytes`."""
    num_blocks = max(0, max_bytes - _HEADER.size) // block_bytes
    while num_blocks and file_bytes(num_blocks, block_bytes) > max_bytes:
        num_blocks -= 1
    return num_blocks


class SwapDirectory:
    """The files of one worker. Used by one thread at a time."""

    def __init__(self, root: Path, engine_id: str, rank: int, max_bytes: int) -> None:
        """Takes the sub-directory, and deletes what dead workers of this machine left behind in `root`.

        Args:
            root: must exist.
            engine_id: unique to the engine; characters that do not fit a file's name are replaced.
            rank: of the worker in its engine.
            max_bytes: of this worker's files.

        Raises:
            OSError: `root` cannot be used, or the sub-directory is held by a worker that lives.
        """
        self._path = root / f"expresslane-kv-{re.sub(r'[^A-Za-z0-9._-]', '_', engine_id)}-{rank}"
        self._max_bytes = max_bytes
        self._files: dict[int, FileShape] = {}
        if not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "swap.directory is no directory", str(root))
        _delete_remains(root)
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._lock: int | None = _hold_lock(self._path)
        _delete_our_files(self._path)

    @property
    def path(self) -> Path:
        """The sub-directory."""
        return self._path

    @property
    def free_bytes(self) -> int:
        """What `max_bytes` leaves."""
        return self._max_bytes - self.used_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(shape.num_bytes for shape in self._files.values())

    def shape_of(self, file_id: int) -> FileShape:
        """What was written to a file.

        Raises:
            FileNotFoundError: nothing was, or it failed, or the file was dropped.
        """
        if (shape := self._files.get(file_id)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such swap file", str(self._file(file_id)))
        return shape

    @contextmanager
    def create(self, shape: FileShape) -> Iterator[FileWriter]:
        """A new file, which is there when the block ends without an error, and otherwise is not.

        Raises:
            OSError: the bytes do not fit, or the file system refuses.
        """
        if shape.num_bytes > self.free_bytes:
            raise OSError(errno.ENOSPC, f"swap.directory_bytes leaves no room for {shape.num_bytes} bytes")
        path, part = self._file(shape.file_id), self._file(shape.file_id).with_suffix(".kv.part")
        try:
            with _open_private(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb") as file:
                yield FileWriter(file, shape)
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        self._files[shape.file_id] = shape

    @contextmanager
    def open(self, file_id: int) -> Iterator[FileReader]:
        """A file that was written.

        Raises:
            FileNotFoundError: it is not there.
            DamagedFileError: it is not what was written.
            OSError: it cannot be read.
        """
        shape = self.shape_of(file_id)
        with _open_private(self._file(file_id), os.O_RDONLY, "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) != shape.num_bytes:
                raise DamagedFileError(f"swap file {file_id} has {size} bytes instead of {shape.num_bytes}")
            if file.read(_HEADER.size) != shape.header:
                raise DamagedFileError(f"swap file {file_id}: its header is not the one written")
            yield FileReader(file, shape)

    def drop(self, file_id: int) -> None:
        """Delete a file. One that is not there is no error.

        Raises:
            OSError: the file system refuses.
        """
        self._files.pop(file_id, None)
        self._file(file_id).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files and the sub-directory, and let go of it. May be called twice."""
        if self._lock is None:
            return
        self._files.clear()
        _delete_sub_directory(self._path)
        os.close(self._lock)
        self._lock = None

    def _file(self, file_id: int) -> Path:
        return self._path / f"{file_id}.kv"


class FileWriter:
    """Writes a file's chunks, first to last."""

    def __init__(self, file: IO[bytes], shape: FileShape) -> None:
        self._file = file
        self._header = shape.header
        self._num_chunks = 0
        file.write(self._header)

    def write_chunk(self, parts: Sequence[memoryview]) -> None:
        """The bytes of the next chunk, in pieces."""
        for part in parts:
            self._file.write(part)
        self._file.write(_digest(self._header, self._num_chunks, parts))
        self._num_chunks += 1


class FileReader:
    """Reads a file's chunks, in any order."""

    def __init__(self, file: IO[bytes], shape: FileShape) -> None:
        self._file = file
        self._shape = shape

    def read_chunk(self, chunk: int, parts: Sequence[memoryview]) -> None:
        """Fills `parts`, which together are as large as the chunk. Only then are their bytes known to be right.

        Raises:
            DamagedFileError: they are not what was written.
        """
        self._file.seek(self._shape.offset_of(chunk))
        for part in parts:
            self._file.readinto(part)  # type: ignore[attr-defined]
        if self._file.read(DIGEST_BYTES) != _digest(self._shape.header, chunk, parts):
            raise DamagedFileError(f"swap file {self._shape.file_id}: chunk {chunk} is not what was written")


def _digest(header: bytes, chunk: int, parts: Sequence[memoryview]) -> bytes:
    digest = blake3(header + chunk.to_bytes(8, "little"))
    for part in parts:
        digest.update(part)
    return digest.digest(length=DIGEST_BYTES)


def _open_private(path: Path, flags: int, mode: Literal["rb", "wb"]) -> IO[bytes]:
    """KV tells what users wrote: nobody else reads it, and no link is followed."""
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW, 0o600), mode)


def _hold_lock(path: Path) -> int:
    """The lock of a sub-directory, held while the returned file is open. It says on which machine, since which boot.

    A lock says something about the workers of one kernel only. Whoever finds the name of its own kernel in a lock, and
    can take it, knows that the worker is dead.
    """
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise OSError(error.errno, "another worker holds this swap directory", str(path)) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, _boot_id(), 0)
    return lock


def _delete_remains(root: Path) -> None:
    """Deletes the sub-directories of dead workers of this machine, and lets all others be."""
    for path in root.iterdir():
        if not _SUB_DIRECTORY.fullmatch(path.name):
            continue
        with suppress(OSError):  # another's, or just being deleted
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.pread(lock, 64, 0) == _boot_id():
                    _delete_sub_directory(path)
            finally:
                os.close(lock)


def _delete_sub_directory(path: Path) -> None:
    with suppress(OSError):  # at the latest the next start deletes it; what is not ours stays
        _delete_our_files(path)
        (path / _LOCK).unlink(missing_ok=True)
        path.rmdir()


def _delete_our_files(path: Path) -> None:
    for file in path.iterdir():
        if _OUR_FILE.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()

"""A directory that is built once: finished or absent, whatever interrupts the building.

Owns the lock, the partial directory beside the target, the flush to disk and the rename. Knows nothing of models; what
goes into the directory is the caller's.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock

PARTIAL_SUFFIX = ".partial"


def is_complete(target: Path, required_files: Sequence[str]) -> bool:
    """Whether `target` holds every required file, none of them empty. The rename vouches for their contents."""
    paths = [target / name for name in required_files]
    return all(path.is_file() and path.stat().st_size > 0 for path in paths)


def make_directory_once(
    target: Path,
    *,
    family: str,
    required_files: Sequence[str],
    build: Callable[[Path], None],
    progress: Callable[[str], None],
) -> Path:
    """Have `build` fill a directory, and give it the name `target` only when it is whole and on disk.

    Targets of one `family` (a name prefix; say, the versions of one model) in one parent share a lock: one process
    builds at a time, the others wait and find its result. So a partial directory of the family seen under the lock was
    left by a process that died, and is removed, as is a target that has lost a required file. A complete target is
    returned as it is, without taking the lock: its parent may be read-only.

    Raises OSError (disk full, no permission) and whatever `build` raises; what was half made is removed.
    """
    if is_complete(target, required_files):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{family}.lock", progress):
        if is_complete(target, required_files):
            return target
        partial = target.parent / f".{target.name}{PARTIAL_SUFFIX}"
        _set_aside(target)
        _remove_partials(target.parent, family)
        try:
            partial.mkdir()
            build(partial)
            if not is_complete(partial, required_files):
                raise RuntimeError(f"the build of {target} left one of {', '.join(required_files)} missing or empty")
            _flush(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _fsync(target.parent)
    return target


@contextmanager
def _locked(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress(f"waiting for another process that holds {path}")
            lock.acquire()
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "the file system has no file locks", str(path)) from error
    try:
        yield
    finally:
        lock.release()


def _set_aside(target: Path) -> None:
    if target.exists():
        target.rename(target.parent / f".{target.name}.incomplete{PARTIAL_SUFFIX}")


def _remove_partials(parent: Path, family: str) -> None:
    for path in parent.glob(f".{family}*{PARTIAL_SUFFIX}"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        _fsync(path)
    _fsync(directory)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

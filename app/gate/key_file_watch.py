"""Keeps the keys as the file has them now. A damaged file changes nothing: the last good one stays in force."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from app.gate.key_file import KeyFileError, parse_key_file
from app.gate.keys import KeyStore

logger = logging.getLogger("expresslane.keys")
_Signature = tuple[int, int, int]


class KeyFileWatch:
    """The file at `path`, looked at every `period_s` by a thread of its own, so that a slow disk delays no request.

    Raises:
        KeyFileError: at the start, when there is no good file yet.
    """

    def __init__(self, path: Path, period_s: float) -> None:
        self._path = path
        self._period_s = period_s
        self._stopped = threading.Event()
        self._seen: _Signature | None = None
        self._told = ""
        self.store = self._read()

    def start(self) -> None:
        """Begins to watch. The thread ends with the process, or by `stop`."""
        threading.Thread(target=self._watch, name="key-file-watch", daemon=True).start()

    def stop(self) -> None:
        """Ends watching."""
        self._stopped.set()

    def check(self) -> None:
        """Takes the file over if it has changed and is good; logs what is wrong with it, once."""
        try:
            if self._signature() == self._seen:
                return
            self.store = self._read()
        except KeyFileError as error:
            self._tell(f"path={str(self._path)!r} reason=damaged kept=last_good error={str(error)!r}")
            return
        self._told = ""
        logger.info("path=%r reason=reloaded tenants=%d", str(self._path), len(self.store.tenants))

    def _read(self) -> KeyStore:
        signature = self._signature()  # before the text: a change in between is seen the next time
        try:
            text = self._path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{self._path}: cannot be read: {type(error).__name__}") from None
        self._seen = signature
        try:
            return parse_key_file(text)
        except KeyFileError as error:
            raise KeyFileError(f"{self._path}: {error}") from None

    def _signature(self) -> _Signature:
        try:
            status = self._path.stat()
        except OSError as error:
            raise KeyFileError(f"{self._path}: cannot be read: {type(error).__name__}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _tell(self, fault: str) -> None:
        if fault != self._told:
            logger.error(fault)
        self._told = fault

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                self.check()
            except Exception:  # the loop goes on: without it a revoked key would stay good for ever
                logger.exception("path=%r reason=unexpected", str(self._path))

"""Large bodies on disk: one unnamed file of blocks in the data directory.

The file is unlinked when it is created, so it does not outlive the process. A body owns whole blocks and returns them when
its last reference is dropped: when the message is settled, or a channel or connection closes before the content is
complete. A thread returns their space to the file system, which can be slow. Data goes to the page cache and is never
synced.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from leveret.broker.bodies import Spool, StoredBody
from leveret.broker.errors import ContentTooLarge
from leveret.broker.failures import Failures

logger = logging.getLogger("leveret.storage")

BLOCK_BYTES: Final = 256 << 10
# A persistent body is spooled, then written to the write-ahead log, then to the file.
PERSISTENT_COPIES: Final = 3

# States of a block: free, part of a body, or being freed.
_FREE: Final = 0
_USED: Final = 1
_LEAVING: Final = 2

_PUNCH_HOLE_KEEP_SIZE: Final = 3


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2) of Linux, which frees a part of a file; None elsewhere, where the file keeps its space."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    found: Callable[[int, int, int, int], int] | None = function
    return found


_fallocate: Final = _find_fallocate()


class FileSpool(Spool):
    """A spool in a data directory.

    keep_free  bytes of disk space to leave free; `at_least` is a lower bound for `leave_free`
    """

    def __init__(self, directory: Path, keep_free: int, at_least: int = 0) -> None:
        self._directory = directory
        self._at_least = at_least
        self._keep_free = max(keep_free, at_least)
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        # The state of each block; the free blocks.
        self._states = bytearray()
        self._free: deque[int] = deque()
        # Released blocks with the bytes to subtract from `_expected`. None ends the thread.
        self._returned: queue.SimpleQueue[tuple[list[int], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Bytes promised to incoming contents and not written yet.
        self._expected = 0
        self._failures = Failures(logger, "returning the space of large bodies")

    @property
    def blocks(self) -> int:
        """Return the number of blocks in use, including returned ones whose space is not free yet."""
        return len(self._states) - self._states.count(_FREE)

    def leave_free(self, size: int) -> None:
        self._keep_free = max(size, self._at_least)

    def begin(self, size: int, persistent: bool) -> StoredBody:
        needed = size * PERSISTENT_COPIES if persistent else size
        with self._lock:
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
                descriptor = self._file.fileno()
                room = self._room()
            except OSError as error:
                raise self.refusal(size, str(error.strerror)) from None
            if room < self._expected + needed:
                raise self.refusal(size, "too little space is free on the disk")
            self._expected += needed
            if self._thread is None:
                self._thread = threading.Thread(target=self._take_back, name="leveret-spool", daemon=True)
                self._thread.start()
        return SpooledBody(self, descriptor, size, needed)

    def close(self) -> None:
        """End the thread after all returned blocks are free. Existing bodies can still be read."""
        thread = self._thread
        self._thread = None
        self._returned.put(None)
        if thread is None:
            self._take_back()
        else:
            thread.join()

    def refusal(self, size: int, why: str) -> ContentTooLarge:
        """Log and return the error for the publisher."""
        logger.warning("refused a body of %d bytes: %s (%s)", size, why, self._directory)
        return ContentTooLarge(
            f"the broker has no room for a body of {size} bytes: {why}; the settings are"
            " limits.disk_free and storage.reserve"
        )

    def _room(self) -> int:
        """Return the bytes that may be written: disk space that is free or being freed, less the space to keep free."""
        leaving = self._states.count(_LEAVING)
        return shutil.disk_usage(self._directory).free + leaving * BLOCK_BYTES - self._keep_free

    def take(self) -> int:
        """Allocate a block and return its number. Raises `OSError` if the disk has no space for another."""
        if shutil.disk_usage(self._directory).free < self._keep_free + BLOCK_BYTES:
            raise OSError(0, "too little space is free on the disk")
        with self._lock:
            if self._free:
                block = self._free.popleft()
                self._states[block] = _USED
            else:
                block = len(self._states)
                self._states.append(_USED)
        return block

    def arrived(self, size: int) -> None:
        """Subtract bytes that were written, or are no longer needed, from the promised ones."""
        with self._lock:
            self._expected -= size

    def give_back(self, blocks: list[int], expected: int) -> None:
        """Return the blocks of a released body. May be called anywhere, since it takes no lock."""
        for block in blocks:
            self._states[block] = _LEAVING
        self._returned.put((blocks, expected))

    def _take_back(self) -> None:
        """Free returned blocks. Runs in the thread."""
        while True:
            returned = self._returned.get()
            if returned is None:
                return
            blocks, expected = returned
            with self._lock:
                self._expected -= expected
            try:
                self._release_space(blocks)
            except Exception as error:
                self._failures.report(error)  # the blocks are reused in any case
            with self._lock:
                for block in blocks:
                    self._states[block] = _FREE
                self._free.extend(blocks)

    def _release_space(self, blocks: list[int]) -> None:
        """Return the space of blocks to the file system, in runs. Without support for that, the space is reused."""
        file = self._file
        if _fallocate is None or file is None:
            return
        at = 0
        while at < len(blocks):
            end = at + 1
            while end < len(blocks) and blocks[end] == blocks[end - 1] + 1:
                end += 1
            _fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, blocks[at] * BLOCK_BYTES, (end - at) * BLOCK_BYTES)
            at = end


class SpooledBody(StoredBody):
    """A body in the blocks of a spool."""

    __slots__ = ("_blocks", "_descriptor", "_expected", "_size", "_spool")

    def __init__(self, spool: FileSpool, descriptor: int, size: int, expected: int) -> None:
        super().__init__()
        self._spool = spool
        self._descriptor = descriptor
        self._size = size
        self._expected = expected
        self._blocks: list[int] = []

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while len(view):
                within = self.size % BLOCK_BYTES
                if not within:
                    self._blocks.append(self._spool.take())
                written = os.pwrite(self._descriptor, view[: BLOCK_BYTES - within], self._blocks[-1] * BLOCK_BYTES + within)
                self.size += written
                view = view[written:]
        except OSError as error:
            raise self._spool.refusal(self._size, str(error.strerror)) from None
        arrived = min(len(data), self._expected) if self.size < self._size else self._expected
        self._expected -= arrived
        self._spool.arrived(arrived)

    def read(self, at: int, length: int) -> bytes:
        pieces: list[bytes] = []
        end = min(at + length, self.size)
        while at < end:
            number, within = divmod(at, BLOCK_BYTES)
            data = os.pread(
                self._descriptor, min(BLOCK_BYTES - within, end - at), self._blocks[number] * BLOCK_BYTES + within
            )
            if not data:
                raise OSError(0, "the file of large bodies is truncated")
            pieces.append(data)
            at += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def __del__(self) -> None:
        self._spool.give_back(self._blocks, self._expected)

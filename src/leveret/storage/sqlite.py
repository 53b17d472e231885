"""The embedded engine: a log in one SQLite file of the data directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED, Recovery
from leveret.storage.batched import BatchedLog
from leveret.storage.data_directory import DirectoryLock, Reserve
from leveret.storage.sqlite_store import SqliteStore
from leveret.storage.worker import StoreBroken, StoreFull, Worker

RESERVE_OCTETS: Final = 16 << 20


class SqliteLog(BatchedLog):
    """A log on disk.

    path           the data directory; it is made where it is missing, and locked while the log is open
    synchronous    FULL, or EXTRA to sync the directory too
    durable        False for a file that is thrown away at the start and never synced (paging of transient messages)
    reserve_bytes  octets held back for the day on which the disk is full; below so much free space the state is FULL.
                   0 for neither
    """

    def __init__(self, path: Path, *, shard: int = 0, synchronous: str = "FULL", durable: bool = True,
                 reserve_bytes: int = RESERVE_OCTETS) -> None:
        super().__init__(shard)
        if synchronous not in ("FULL", "EXTRA"):
            raise ValueError("synchronous must be FULL or EXTRA: anything less loses what was confirmed")
        self.path = path
        self.name = f"log-{shard}" if durable else f"overflow-{shard}"
        self._synchronous = synchronous if durable else "OFF"
        self._durable = durable
        self._reserve_bytes = reserve_bytes if durable else 0
        self._lock: DirectoryLock | None = None
        self._store: SqliteStore | None = None

    @property
    def file(self) -> Path:
        """The database file."""
        return self.path / f"{self.name}.sqlite"

    def open(self) -> Recovery:
        """Open or create the store and recover it. Blocking: called before the event loop runs.

        Raises `StorageFailed` with a message that says what is wrong and what to do: locked, newer format, damaged.
        """
        self._lock = DirectoryLock(self.path, f"{self.name}.lock")
        try:
            if not self._durable:
                self._remove_file()
            reserve = Reserve(self.path / f"{self.name}.reserve", self._reserve_bytes)
            reserve.take()
            self._store = SqliteStore(self.file, self._synchronous, reserve)
            rebuilt = self._store.recover(self)
            reason = self._store.space(0)
            if reason:
                self.changed("full", reason)
        except BaseException:
            self._release()
            raise
        return self.adopt(rebuilt)

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        assert self._store is not None, "the log is not open"
        self._worker = Worker(self, self._store, post)
        self._started = True

    def close(self) -> None:
        """Commit what is pending, mark the store as closed properly, release it. Blocking.

        Raises `StorageFailed` where that was not possible; the store is released all the same.
        """
        try:
            self._end()
        finally:
            self._release()

    def _end(self) -> None:
        store = self._store
        if store is None:
            return
        worker = self._worker
        self._worker = None
        self._started = False
        if worker is not None:
            worker.close()
            if worker.failure is not None:
                raise StorageFailed(f"the log was not closed properly: {worker.failure}")
        if self.state == FAILED:
            return
        try:
            # The worker is gone, and with it whoever would have posted what its last commit has to say.
            if self._flying is not None:
                self.returned()
            while self.pending():
                commit = self._build()
                store.commit(commit)
                self.returned()
            store.finish(self.last_commit())
        except (StoreFull, StoreBroken) as error:
            raise StorageFailed(f"the log was not closed properly: {error}") from None
        if not self._durable:
            store.close()
            self._remove_file()

    def _release(self) -> None:
        if self._store is not None:
            self._store.reserve.give_up()
            self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self.spool is not None:
            self.spool.close()

    def _remove_file(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)

"""The embedded engine: a log in one SQLite database of the data directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED, LogCopy, Recovery, RowsAddress
from leveret.storage import disk
from leveret.storage.batched import BatchedLog
from leveret.storage.copying import DatabaseCopy
from leveret.storage.data_directory import DirectoryLock, Reserve
from leveret.storage.indexing import StoreIndex
from leveret.storage.presence import LogFiles
from leveret.storage.row_sources import SQLITE
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.sqlite_store import SqliteStore
from leveret.storage.worker import StoreBroken, StoreFull, Worker

logger = logging.getLogger("leveret.storage")

RESERVE_BYTES: Final = 16 << 20


class SqliteLog(BatchedLog):
    """A log on disk.

    path           the data directory; created if it is missing, and locked while the log is open
    synchronous    FULL, or EXTRA to sync the directory too
    durable        False for a file that is deleted at the start and never synced (paging of transient messages)
    reserve_bytes  disk space reserved for use when the disk is full; the state is FULL while less space is free;
                   0 disables both
    salvage        the losses that the operator accepts for this start
    """

    def __init__(
        self,
        path: Path,
        *,
        shard: int = 0,
        synchronous: str = "FULL",
        durable: bool = True,
        reserve_bytes: int = RESERVE_BYTES,
        salvage: Salvage = NOTHING_LOST,
    ) -> None:
        super().__init__(shard)
        if synchronous not in ("FULL", "EXTRA"):
            raise ValueError("storage.synchronous must be FULL or EXTRA, since other modes lose confirmed messages")
        self.path = path
        self.name = f"log-{shard}" if durable else f"overflow-{shard}"
        self._synchronous = synchronous if durable else "OFF"
        self._durable = durable
        self._salvage = salvage if durable else NOTHING_LOST
        self._files = LogFiles(path, self.name)
        self._reserve_bytes = reserve_bytes if durable else 0
        self._lock: DirectoryLock | None = None
        self._store: SqliteStore | None = None
        # The rows that are not indexed yet, and whether the log was closed properly before.
        self._row_index: StoreIndex | None = None
        self._clean = True
        self._post: Callable[[Callable[[], None]], None] | None = None

    @property
    def file(self) -> Path:
        """The path of the database file."""
        return self.path / f"{self.name}.sqlite"

    def rows_address(self) -> RowsAddress:
        return RowsAddress(SQLITE, {"path": str(self.file)}, is_local=True)

    def open(self, index_later: bool = False) -> Recovery:
        """Open or create the store and recover it. Blocking: called before the event loop runs.

        Raises `StorageFailed`, with the remedy, if the store is locked, damaged or of a newer format.
        """
        self._lock = DirectoryLock(self.path, f"{self.name}.lock")
        try:
            incomplete = self._durable and self._check_files()
            if not self._durable:
                self._remove_file()
            reserve = Reserve(self.path / f"{self.name}.reserve", self._reserve_bytes)
            reserve.allocate()
            self._store = SqliteStore(self.file, self._synchronous, reserve, self._salvage, incomplete)
            rebuilt = self._store.recover(self, index_later)
            if self._durable:
                self._mark()
            if incomplete:
                self._files.forget_missing()
            reason = self._store.space(0)
            if reason:
                self.changed("full", reason)
        except OSError as error:
            self._release()
            raise StorageFailed(
                f"the data directory {self.path} cannot be used: {error.strerror} ({error.filename or self.file})"
            ) from None
        except BaseException:
            self._release()
            raise
        recovery = self.adopt(rebuilt)
        self._clean = recovery.clean
        if not rebuilt.indexed:
            self._row_index = recovery.index = StoreIndex(self, self._store, rebuilt)
        return recovery

    def indexed(self) -> None:
        """Note that all rows are indexed."""
        self._row_index = None

    def post(self, callback: Callable[[], None]) -> None:
        """Run a callback on the event loop, from any thread."""
        if self._post is not None:
            self._post(callback)

    def _check_files(self) -> bool:
        """Raise `StorageFailed` if files are missing, unless the operator accepts that.

        Returns whether missing files were accepted and the log has no record of it yet.
        """
        missing = self._files.missing()
        if not missing:
            return self._files.accepted()
        if not self._salvage.accept_missing:
            raise StorageFailed(
                f"{missing}; restore the directory {self.path} from a backup; or, to start with the remaining"
                " files and lose the rest (users and permissions too, if the database is missing), start"
                " once with --accept-missing (accept_missing=True of an embedded broker)"
            )
        logger.error("started with --accept-missing although %s", missing)
        try:
            self._files.accept_missing()
            self._files.put_aside()
        except OSError as error:
            raise StorageFailed(f"the data directory {self.path} cannot be written: {error.strerror}") from None
        return True

    def _mark(self) -> None:
        try:
            self._files.mark()
        except OSError as error:
            if error.errno in disk.NO_SPACE:
                return  # consumers of an existing log may free space; a later start writes the marker
            raise StorageFailed(f"{self._files.marker} cannot be written: {error.strerror}") from None

    def start(
        self, post: Callable[[Callable[[], None]], None], when_idle: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        assert self._store is not None, "the log is not open"
        self._when_idle = when_idle
        self._post = post
        self._worker = Worker(self, self._store, post)
        self._started = True

    def copy_to(self, path: str, keep_free: int) -> LogCopy:
        assert self._store is not None and self._worker is not None, "the log is not open"
        copy = DatabaseCopy(Path(path), keep_free)
        self._worker.run_long(partial(self._store.copy, copy))
        return copy

    def close(self) -> None:
        """Commit pending records, mark the store as closed properly, and release it. Blocking.

        Raises `StorageFailed` if that fails; the store is released in any case.
        """
        self.complete_batch()
        if self._row_index is not None:
            self._row_index.stop()
        try:
            self._end()
        finally:
            self._release()

    def _end(self) -> None:
        store = self._store
        if store is None:
            return
        is_recovered = self._started and self._row_index is None
        self.stop_worker()
        if self.state == FAILED:
            return
        try:
            self.write_rest(store)
            if is_recovered or self._clean:
                store.finish(self.last_commit())
            else:
                # The broker has not noted what it may have delivered before: the next start must still treat the rows
                # as after an unclean stop.
                store.commit(self.last_commit())
        except (StoreFull, StoreBroken) as error:
            raise StorageFailed(f"the log was not closed properly: {error}") from None
        if not self._durable:
            store.close()
            try:
                self._remove_file()
            except OSError as error:
                raise StorageFailed(
                    f"{error.filename or self.file} cannot be removed: {error.strerror}; the next start removes it"
                ) from None

    def _release(self) -> None:
        if self._store is not None:
            self._store.reserve.release()
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

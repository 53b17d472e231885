"""The PostgreSQL engine: a log in tables of a server, which survives the machine of the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED, Recovery, RowsAddress
from leveret.storage.batched import BatchedLog
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_marker import Marker
from leveret.storage.postgres_rows import address_fields
from leveret.storage.postgres_store import BEATS, OwnerWorker, PostgresStore
from leveret.storage.row_sources import POSTGRESQL
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.worker import StoreBroken, StoreFull

# Part of the lease after which a log without an answer of the server is silent.
SILENT = 0.8


class PostgresLog(BatchedLog):
    """A log in PostgreSQL.

    settings  the place of the log
    marker    the file with the evidence of earlier commits
    salvage   the losses that the operator accepts for this start
    """

    def __init__(self, settings: ClusterSettings, marker: Path, *, shard: int = 0, salvage: Salvage = NOTHING_LOST) -> None:
        super().__init__(shard)
        self._settings = settings
        self._marker = Marker(marker)
        self._salvage = salvage
        self._store: PostgresStore | None = None
        # The clock of the server, as of the last connection.
        self._clock = 0.0
        # Whether the log was closed properly before.
        self._clean = True

    def open(self, index_later: bool = False) -> Recovery:
        """Connect, create or join the schema, become the owner of the shard, and recover its log. Blocking.

        Raises `StorageFailed`, with the remedy, if the server cannot be used, or another broker owns the shard.
        """
        self._store = PostgresStore(self._settings, self.shard, self._salvage, self._marker)
        try:
            rebuilt = self._store.recover(self)
        except BaseException:
            self._release()
            raise
        recovery = self.adopt(rebuilt)
        self._clean = recovery.clean
        return recovery

    def start(
        self, post: Callable[[Callable[[], None]], None], when_idle: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        store = self._store
        assert store is not None, "the log is not open"
        self._when_idle = when_idle
        store.begin()
        worker = OwnerWorker(self, store, post, self._settings.lease / BEATS)
        store.on_state = worker.set_state
        self._worker = worker
        self._started = True

    def rows_address(self) -> RowsAddress:
        store = self._store
        assert store is not None, "the log is not open"
        fields = address_fields(self._settings, self.shard, store.epoch, store.facts.server)
        return RowsAddress(POSTGRESQL, fields, is_local=False)

    def is_silent(self) -> bool:
        # Before the lease ends, since the server may have recorded the last sign of life before this process noted it.
        store = self._store
        return store is not None and time.monotonic() - store.beaten > SILENT * self._settings.lease

    def clock(self) -> float:
        if self._store is not None:
            self._clock = self._store.facts.clock
        return self._clock

    def find_takers(self, answer: Callable[[bool], None]) -> None:
        store, worker = self._store, self._worker
        if store is None or worker is None:
            answer(False)
        else:
            worker.ask(store.has_takers, answer)

    def changed(self, state: str, reason: str) -> None:
        if state == FAILED and self._store is not None:
            self.may_reopen = not self._store.refused
        super().changed(state, reason)

    def describe(self) -> str:
        return "" if self._store is None else self._store.describe()

    def close(self) -> None:
        """Commit pending records, and release the shard. Blocking.

        Raises `StorageFailed` if that fails; the connection is closed in any case.
        """
        self.complete_batch()
        try:
            self._end()
        finally:
            self._release()

    def _end(self) -> None:
        store = self._store
        if store is None:
            return
        store.stop_waiting()
        is_recovered = self._started
        self.stop_worker()
        # Otherwise the broker has not noted what it may have delivered before, which the next owner has to do.
        if self.state == FAILED or not (is_recovered or self._clean):
            return
        try:
            self.write_rest(store)
            store.finish(self.last_commit())
        except (StoreFull, StoreBroken) as error:
            raise StorageFailed(f"the log was not closed properly: {error}") from None

    def _release(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        if self.spool is not None:
            self.spool.close()

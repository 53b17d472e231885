"""The in-memory engine. Nothing outlives the process.

Flushing the turn commits the batch. Records stay in memory until they are settled, so paging frees no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from mypy_extensions import mypyc_attr

from leveret.broker.log import CommitWaiter, Loaded, Log, Recovery, Row
from leveret.broker.message import Entry


class MemoryRow(Row):
    """The entries of one batch. Each is dropped when it is settled."""

    __slots__ = ("entries",)

    def __init__(self, log: Log, id: int, batch: int) -> None:
        super().__init__(log, id, batch)
        self.entries: list[Entry | None] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryLog(Log):
    """A log in memory. `open` returns an empty recovery; metadata is discarded, since nothing can read it back."""

    def __init__(self, shard: int = 0) -> None:
        super().__init__(shard)
        self._next_row = 1
        self._row: MemoryRow | None = None
        self._dirty = False
        self._commits = 0
        self._bytes = 0
        self._waiters: list[CommitWaiter] = []
        self._post: Callable[[Callable[[], None]], None] | None = None

    def open(self, index_later: bool = False) -> Recovery:
        return Recovery()

    def start(
        self, post: Callable[[Callable[[], None]], None], when_idle: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._post = post

    def close(self) -> None:
        self.flush()
        self._post = None

    def store(self, entry: Entry) -> None:
        row = self._row
        if row is None:
            row = MemoryRow(self, self._next_row, self.filling)
            self._next_row += 1
            self._row = row
            self.rows[row.id] = row
            self._dirty = True
        message = entry.message
        slot = len(row.entries)
        row.entries.append(entry)
        row.slots.append(1)
        row.live += 1
        row.size += message.size
        self._bytes += message.size
        entry.row = row
        entry.slot = slot
        if message.row is None:
            message.row = row
            message.slot = slot

    def settle(self, entry: Entry) -> None:
        row: MemoryRow = entry.row  # type: ignore[assignment]
        self._settle(row, entry.slot)
        self._dirty = True

    def _settle(self, row: MemoryRow, slot: int) -> None:
        entry = row.entries[slot]
        if entry is None:
            return
        row.entries[slot] = None
        row.slots[slot] = 0
        row.live -= 1
        self._bytes -= entry.message.size
        if not row.live and row is not self._row:
            self.rows.pop(row.id, None)

    def settle_range(
        self, queue_id: int, first: int, last: int, keep: Iterable[int], rows: Iterable[int], slots: Iterable[int]
    ) -> None:
        for row_id, slot in zip(rows, slots, strict=True):
            row = self.rows.get(row_id)
            if row is not None:
                assert isinstance(row, MemoryRow)
                self._settle(row, slot)
        self._dirty = True

    def update(self, entry: Entry) -> None:
        """Do nothing: the log keeps the entry itself."""
        kept: MemoryRow = entry.row  # type: ignore[assignment]
        if kept.entries[entry.slot] is not None:
            kept.entries[entry.slot] = entry
        self._dirty = True

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        self._dirty = True

    def forget(self, queue_id: int) -> None:
        pass

    def wait(self, waiter: CommitWaiter) -> None:
        self._waiters.append(waiter)

    def flush(self) -> None:
        while (self._dirty or self._waiters) and self.completion is None:
            batch = self.filling
            self.filling = batch + 1
            self._dirty = False
            row = self._row
            self._row = None
            if row is not None and not row.live:
                self.rows.pop(row.id, None)
            self.committed = batch
            self._commits += 1
            waiters = self._waiters
            self._waiters = []
            for waiter in waiters:
                waiter.committed(batch)

    def load(self, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        loaded: list[Loaded] = []
        for row_id, slot in zip(rows, slots, strict=True):
            row = self.rows[row_id]
            assert isinstance(row, MemoryRow)
            entry = row.entries[slot]
            assert entry is not None, "a settled entry was requested"
            loaded.append(
                Loaded(entry.seq, row, slot, entry.message, entry.overlay, entry.acquired_count, entry.delivery_count)
            )
        assert self._post is not None
        self._post(_Done(done, loaded).call)

    def statistics(self) -> dict[str, int]:
        return {"bytes": self._bytes, "live_bytes": self._bytes, "rows": len(self.rows), "commits": self._commits}


class _Done:
    """Posts the result of a load."""

    __slots__ = ("done", "loaded")

    def __init__(self, done: Callable[[list[Loaded]], None], loaded: list[Loaded]) -> None:
        self.done = done
        self.loaded = loaded

    def call(self) -> None:
        self.done(self.loaded)

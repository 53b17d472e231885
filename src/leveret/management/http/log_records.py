"""The latest log records of the broker's process and of this one, in the order of their times.

This process reads the broker's records only while there are clients that ask for them.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from leveret.management.http.control import Control, Row
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable
from leveret.management.recent_log import LogEntry, LogFilter, LogRecords

# Maximum number of records in one read of a stream, and of characters of their texts unless one record has more.
MAX_READ: Final = 500
MAX_TEXT: Final = 256 << 10
# Seconds for which streams share what was read of the broker.
SHARED: Final = 0.25
# Maximum number of slices to read of the broker at a time.
_MAX_SLICES: Final = 40
_PROCESSES: Final = ("broker", "http")


class ProcessEntry(LogEntry, kw_only=True):
    """A log record of a process: `broker`, `shard 1` or `http`."""

    process: str


class LogPage(msgspec.Struct, kw_only=True):
    """Log records, oldest first.

    Attributes:
        records: The records.
        dropped: Number of records between them that were not kept.
    """

    records: list[ProcessEntry]
    dropped: int


class Logs:
    """The records of both processes.

    Args:
        control: The calls of the broker.
        own: The records of this process.
    """

    def __init__(self, control: Control, own: LogRecords) -> None:
        self._control = control
        self._broker = LogRecords()
        self._sources = (self._broker, own)
        self._reading = asyncio.Lock()
        self._read_at = 0.0
        # Positions of another process do not apply to these records.
        self._epoch = secrets.token_hex(4)

    async def latest(self, wanted: LogFilter, limit: int) -> LogPage:
        """Return the last records that meet the conditions. Raises `BrokerUnavailable`."""
        await self._refresh(0.0)
        return _Cursor(self._sources).latest(wanted, limit)

    def open(self, wanted: LogFilter, limit: int, last_id: str) -> LogStream:
        """Open a stream.

        Args:
            wanted: The conditions.
            limit: Number of records to begin with.
            last_id: The id of the last event that the client has; "" for a new client.
        """
        epoch, _, numbers = last_id.partition("-")
        return LogStream(self, wanted, limit, numbers if epoch == self._epoch else None)

    def cursor(self, numbers: str | None) -> _Cursor:
        """Return a cursor after the records with these numbers, or at the oldest records if there are none."""
        return _Cursor(self._sources, numbers)

    def id_of(self, cursor: _Cursor) -> str:
        """Return the id of an event at a cursor."""
        return f"{self._epoch}-{cursor.numbers}"

    async def share(self) -> None:
        """Read the broker's records unless another stream has done so a moment ago, or the broker does not answer."""
        with suppress(BrokerRefused, BrokerUnavailable):
            await self._refresh(SHARED)

    async def _refresh(self, max_age: float) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < max_age:
                return
            for _ in range(_MAX_SLICES):
                found: Row = await self._control.call("log.read", {"after": self._broker.last})
                if found["forgotten"] > self._broker.last:
                    self._broker.forget(found["forgotten"])  # what follows does not join the older records
                for row in found["records"]:
                    self._broker.add(msgspec.convert(row, LogEntry))
                self._broker.go_to(found["last"])
                if not found["more"]:
                    break
            self._read_at = time.monotonic()


class _Cursor:
    """A place in the records of all processes."""

    def __init__(self, sources: tuple[LogRecords, ...], numbers: str | None = None) -> None:
        self._sources = sources
        parts = [] if numbers is None else numbers.split(".")
        if len(parts) == len(sources) and all(part.isdecimal() and len(part) <= 18 for part in parts):
            self._numbers = [min(int(part), source.last) for part, source in zip(parts, sources, strict=True)]
            self.is_new = False
        else:
            # Records that were forgotten before do not count as dropped.
            self._numbers = [source.forgotten for source in sources]
            self.is_new = True
        self.dropped = 0

    @property
    def numbers(self) -> str:
        """The place as text."""
        return ".".join(map(str, self._numbers))

    def latest(self, wanted: LogFilter, limit: int) -> LogPage:
        """Go to the end, and return the last records that meet the conditions."""
        found = deque(self._matching(wanted), limit)
        dropped, self.dropped = self.dropped, 0
        return LogPage(records=list(found), dropped=dropped)

    def next(self, wanted: LogFilter) -> LogPage:
        """Return the next records that meet the conditions."""
        found: list[ProcessEntry] = []
        left = MAX_TEXT
        for entry in self._matching(wanted):
            found.append(entry)
            left -= len(entry.message) + len(entry.exception)
            if len(found) == MAX_READ or left < 0:
                break
        dropped, self.dropped = self.dropped, 0
        return LogPage(records=found, dropped=dropped)

    def _matching(self, wanted: LogFilter) -> Iterator[ProcessEntry]:
        """Go through the records, in the order of their times."""
        ends = [source.last for source in self._sources]  # before the records: another thread may add some
        parts = [
            [(index, entry) for entry in source.after(number)]
            for index, (source, number) in enumerate(zip(self._sources, self._numbers, strict=True))
        ]
        for index, entry in heapq.merge(*parts, key=lambda item: item[1].time):
            self._go_to(index, entry.id, missing=entry.id - self._numbers[index] - 1)
            if wanted.matches(entry):
                process = _PROCESSES[index] if entry.shard is msgspec.UNSET else f"shard {entry.shard}"
                yield ProcessEntry(process=process, **msgspec.structs.asdict(entry))
        for index, end in enumerate(ends):
            if end > self._numbers[index]:
                self._go_to(index, end, missing=end - self._numbers[index])

    def _go_to(self, index: int, number: int, missing: int) -> None:
        self._numbers[index] = number
        self.dropped += missing


class LogStream:
    """The records for one client."""

    def __init__(self, logs: Logs, wanted: LogFilter, limit: int, numbers: str | None) -> None:
        self._logs = logs
        self._wanted = wanted
        self._limit = limit
        self._numbers = numbers
        self._cursor: _Cursor | None = None

    async def read(self) -> LogPage:
        """Return the next records: at first the last ones, unless the stream continues another one."""
        await self._logs.share()
        if self._cursor is not None:
            return self._cursor.next(self._wanted)
        self._cursor = self._logs.cursor(self._numbers)
        if self._cursor.is_new:
            return self._cursor.latest(self._wanted, self._limit)
        return self._cursor.next(self._wanted)

    @property
    def is_new(self) -> bool:
        """Whether the stream does not continue another one."""
        return self._cursor is not None and self._cursor.is_new

    @property
    def id(self) -> str:
        """The id of the last event."""
        return "" if self._cursor is None else self._logs.id_of(self._cursor)

"""The latest log records of a process, which administrators read.

A handler keeps them within bounds of number, bytes and rate. It formats a record at once: its arguments may change, and
would otherwise be kept however large they are. A record that is not kept has a number, too, so that a reader knows how many
it misses.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from leveret.management.structs import Reply

# Maximum number of records that a process keeps, and of their bytes in memory.
MAX_RECORDS: Final = 1000
MAX_BYTES: Final = 1 << 20
# Maximum number of records that are kept in one second; further ones are counted.
MAX_RATE: Final = 1000
# Maximum characters of a message and of a traceback. The rest is cut off.
MAX_MESSAGE: Final = 4096
MAX_EXCEPTION: Final = 16384
# Bytes of a record without its texts.
_OVERHEAD: Final = 512
_ELLIPSIS: Final = "…"

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
# Fields of log records that calls give as `extra`, or arguments of messages as `log_fields`.
FIELDS: Final = ("connection", "vhost", "user", "peer")
Fields: TypeAlias = dict[str, str | int]


def fields_of(record: logging.LogRecord) -> Fields:
    """Return the fields of a log record that say what it is about: a connection, a vhost, a user or a client."""
    fields: Fields = {}
    for argument in record.args if isinstance(record.args, tuple) else ():
        fields |= getattr(argument, "log_fields", {})
    return fields | {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}


def escaped(text: str) -> str:
    """Return a text with bytes that are not UTF-8 escaped."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


class LogEntry(Reply, kw_only=True):
    """A log record.

    Attributes:
        id: Increases by one per record of the process, including those that were not kept.
        time: Milliseconds of Unix time.
        level: `debug`, `info`, `warning`, `error` or `critical`.
        logger: The part of the broker that logged it.
        message: The text.
        connection: The number of the connection; None if it is about none.
        vhost: The vhost, "" for none.
        user: The user, "" for none.
        peer: The address of the client, "" for none.
        exception: The traceback, "" for none.
        shard: The number of the shard that logged it; not set for other processes.
    """

    id: int
    time: int
    level: str
    logger: str
    message: str
    connection: int | None = None
    vhost: str = ""
    user: str = ""
    peer: str = ""
    exception: str = ""
    shard: int | msgspec.UnsetType = msgspec.UNSET


class LogRecords:
    """The latest records of one process. One thread at a time adds records; any thread may read them.

    Attributes:
        last: The number of the last record, kept or not.
        forgotten: Records up to this number are not kept any more.
    """

    def __init__(self) -> None:
        self.last = 0
        self.forgotten = 0
        self._kept: deque[LogEntry] = deque()
        self._bytes = 0

    def add(self, entry: LogEntry) -> None:
        """Keep a record, and forget the oldest ones beyond the limits."""
        self.last = entry.id
        self._kept.append(entry)
        self._bytes += _size(entry)
        while len(self._kept) > MAX_RECORDS or self._bytes > MAX_BYTES:
            oldest = self._kept.popleft()
            self._bytes -= _size(oldest)
            self.forgotten = oldest.id

    def forget(self, number: int) -> None:
        """Forget all records, which precede the one with this number or are it."""
        self._kept.clear()
        self._bytes = 0
        self.forgotten = self.last = number

    def go_to(self, number: int) -> None:
        """Note that records up to this number were logged, kept or not."""
        self.last = number

    def skip(self) -> None:
        """Count a record that is not kept."""
        self.last += 1

    def after(self, number: int) -> list[LogEntry]:
        """Return the kept records after the one with this number."""
        kept = list(self._kept)  # at once: another thread may add records
        first = len(kept)
        while first and kept[first - 1].id > number:
            first -= 1
        return kept[first:]


def _size(entry: LogEntry) -> int:
    return _OVERHEAD + sys.getsizeof(entry.message) + sys.getsizeof(entry.exception)


class RecentLog(logging.Handler):
    """Handler that keeps the latest records of the process.

    Attributes:
        records: The records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records = LogRecords()
        # The second of the last record, and the number of records in it.
        self._second = 0
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, or count it if there are too many in this second."""
        second = int(record.created)
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > MAX_RATE:
            self.records.skip()
            return
        try:
            self.records.add(self._entry(record))
        except Exception:
            self.records.skip()
            self.handleError(record)

    def _entry(self, record: logging.LogRecord) -> LogEntry:
        fields = fields_of(record)
        number = fields.get("connection")
        return LogEntry(
            id=self.records.last + 1,
            time=int(record.created * 1000),
            level=record.levelname.lower(),
            logger=record.name,
            message=_clipped(record.getMessage(), MAX_MESSAGE),
            connection=number if isinstance(number, int) else None,
            vhost=escaped(str(fields.get("vhost", ""))),
            user=escaped(str(fields.get("user", ""))),
            peer=escaped(str(fields.get("peer", ""))),
            exception=_clipped(traceback_of(record), MAX_EXCEPTION),
        )


def _clipped(text: str, limit: int) -> str:
    return escaped(text if len(text) <= limit else text[: limit - 1] + _ELLIPSIS)


_FORMATTER: Final = logging.Formatter()


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record, "" if it has none. It is formatted once for all handlers."""
    if record.exc_info and not record.exc_text:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    return record.exc_text or ""


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on log records, all of which must be met; empty ones are.

    Attributes:
        level: The lowest level.
        logger: The logger, or the beginning of its name up to a dot.
        text: A part of the message or of the traceback, in upper or lower case.
        connection: The number of the connection.
        vhost: The vhost.
    """

    level: str = ""
    logger: str = ""
    text: str = ""
    connection: int | None = None
    vhost: str = ""

    def matching(self, entries: Iterable[LogEntry]) -> list[LogEntry]:
        """Return the records that meet the conditions."""
        return [entry for entry in entries if self.matches(entry)]

    def matches(self, entry: LogEntry) -> bool:
        """Return whether a record meets the conditions."""
        if self.level and _rank(entry.level) < _rank(self.level):
            return False
        if self.logger and not f"{entry.logger}.".startswith(f"{self.logger}."):
            return False
        if self.connection is not None and entry.connection != self.connection:
            return False
        if self.vhost and entry.vhost != self.vhost:
            return False
        text = self.text.casefold()
        return not text or text in entry.message.casefold() or text in entry.exception.casefold()


def _rank(level: str) -> int:
    """Return the place of a level; a level that Leveret does not use comes last, so that it is always shown."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)

"""The latest log records of the broker's process, read in slices."""

from __future__ import annotations

from typing import Final

from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.recent_log import LogEntry
from leveret.management.structs import Reply, Request

# Maximum number of records in a reply, and of characters of their texts unless one record has more.
MAX_SLICE: Final = 250
MAX_TEXT: Final = 128 << 10


class ReadLog(Request, kw_only=True):
    """Request for log records.

    Attributes:
        after: The number of the last record that the reader knows.
    """

    after: int = 0


class LogSlice(Reply, kw_only=True):
    """Log records, oldest first.

    Attributes:
        last: The number of the last record up to here, kept or not: the next value of `after`.
        more: Whether there are further records now.
        forgotten: Records up to this number are not kept any more.
    """

    records: list[LogEntry]
    last: int
    more: bool
    forgotten: int


def read_log(context: Context, request: ReadLog) -> LogSlice:
    """Return the next kept records."""
    kept = context.managed.log
    last, forgotten = kept.last, kept.forgotten
    found: list[LogEntry] = []
    left = MAX_TEXT
    for entry in kept.after(request.after):
        left -= len(entry.message) + len(entry.exception)
        if found and (len(found) == MAX_SLICE or left < 0):
            return LogSlice(records=found, last=found[-1].id, more=True, forgotten=forgotten)
        found.append(entry)
    last = max(last, request.after, found[-1].id if found else 0)
    return LogSlice(records=found, last=last, more=False, forgotten=forgotten)


OPERATIONS: Final[Operations] = {"log.read": Operation(read_log, ReadLog, LogSlice)}

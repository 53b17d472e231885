"""Tables over the files of streams, which the store updates some time after each change of a manifest.

The manifest is authoritative. A failed update is retried, and no other work waits for it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from leveret.broker.timers import Timed, Timers
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.segments import SegmentStore
    from leveret.broker.streams.queue import StreamQueue

logger = logging.getLogger("leveret.broker")

SYNC: Final = "sync-table"
DROP: Final = "drop-table"
FIRST_RETRY: Final = 30_000
MAX_RETRY_DELAY: Final = 600_000


class TableState:
    """The state of one stream's table `name`.

    pending  whether an update of the table is pending
    synced   time of the last update in milliseconds of Unix time, 0 for none since the start
    problem  error of the latest update, "" for none
    """

    __slots__ = ("files", "name", "pending", "problem", "synced")

    def __init__(self) -> None:
        self.name = ""
        self.files = 0
        self.pending = False
        self.synced = 0
        self.problem = ""


class StreamTables(Timed):
    """The tables of a broker. One is updated at a time."""

    def __init__(self, store: SegmentStore, timers: Timers, after: int) -> None:
        super().__init__()
        self.store = store
        self.timers = timers
        self.after = after
        self.states: dict[int, TableState] = {}
        # Streams whose tables are outdated, in the order of the changes.
        self.behind: dict[int, StreamQueue] = {}
        self.busy = False
        self.delay = 0

    def state(self, stream: StreamQueue) -> TableState:
        return self.states.setdefault(stream.id, TableState())

    def changed(self, stream: StreamQueue) -> None:
        """Schedule an update of the table of a stream."""
        self.behind.setdefault(stream.id, stream)
        self.state(stream).pending = True
        if not self.due and not self.busy:
            self.timers.at(self.timers.now() + self.after, self)

    def hurry(self, streams: list[StreamQueue]) -> None:
        """Update the tables of these streams at once."""
        self.behind = {**{stream.id: stream for stream in streams}, **self.behind}
        for stream in streams:
            state = self.state(stream)
            state.pending = True
            state.problem = ""
        self.delay = 0
        if self.behind and not self.busy:
            self.timers.at(self.timers.now() + 1, self)

    def fire(self, now: int) -> None:
        if self.busy or not self.behind:
            return
        stream = self.behind.pop(next(iter(self.behind)))
        self.busy = True
        arguments: FieldTable = {
            "vhost": stream.vhost.name,
            "stream": _text(stream.name),
            "owner": f"{stream.uid} ({_text(stream.name)} in vhost {stream.vhost.name})",
        }
        if not stream.deleted:
            arguments["paths"] = [segment.path for segment in stream.segments]
        self.store.work(DROP if stream.deleted else SYNC, json.dumps(arguments).encode(), _Attempt(self, stream).done)

    def attempted(self, stream: StreamQueue, result: bytes, text: str) -> None:
        self.busy = False
        now = self.timers.now()
        state = self.state(stream)
        if text:
            logger.warning(
                "the Iceberg table of stream '%s' in vhost '%s' cannot be updated: %s", stream.name, stream.vhost.name, text
            )
            state.problem = text
            self.behind.setdefault(stream.id, stream)
            self.delay = min(max(2 * self.delay, FIRST_RETRY), MAX_RETRY_DELAY)
            self.timers.at(now + self.delay, self)
            return
        self.delay = 0
        if stream.deleted:
            del self.states[stream.id]
        else:
            state.name = str(json.loads(result)["table"])
            state.files = len(stream.segments)
            state.pending = stream.id in self.behind
            state.synced = now
            state.problem = ""
        if self.behind:
            self.timers.at(now + 1, self)


class _Attempt:
    def __init__(self, tables: StreamTables, stream: StreamQueue) -> None:
        self.tables = tables
        self.stream = stream

    def done(self, result: bytes, kind: str, text: str) -> None:
        self.tables.attempted(self.stream, result, text if kind else "")


def _text(name: str) -> str:
    """Return a name in a form that is valid in JSON and table names."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

"""A harness for the tests of the engines, with fake queues and a fake event loop."""

from __future__ import annotations

import queue as queues
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leveret.broker.bodies import whole
from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.log import Loaded, Log, Recovery
from leveret.broker.message import Entry, Message, make_address
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.transactions.transaction import Transaction
from leveret.storage.cluster import ClusterSettings
from leveret.storage.memory import MemoryLog
from leveret.storage.sqlite import SqliteLog
from tests.support.postgres import SELECTED, database_of

HEADER = b"\x00\x3c\x00\x00"
ADDRESS = make_address("amq.direct", "key")


# A vhost that no test inspects: the log takes entries of real queues, which need one. (Compiled classes accept no
# stand-ins.)
VHOST = Broker(MemoryLog()).add_vhost("/", VhostSettings())


class FakeQueue:
    """A queue as the log sees it: an id, and entries with sequence numbers."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.seq = 0
        self.queue = ClassicQueue(QueueDefinition(VHOST, id, f"q{id}", True))

    def entry(self, message: Message) -> Entry:
        self.seq += 1
        return Entry(self.queue, message, self.seq)


class Loop:
    """Runs posted callbacks on request."""

    def __init__(self) -> None:
        self.posted: queues.SimpleQueue[Callable[[], None]] = queues.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        self.posted.put(call)

    def run_until(self, condition: Callable[[], bool], timeout: float = 120.0) -> None:
        while not condition():
            self.posted.get(timeout=timeout)()

    def run_pending(self) -> None:
        while True:
            try:
                call = self.posted.get_nowait()
            except queues.Empty:
                return
            call()


class Waiter:
    """Records the number of the awaited batch. (Compiled code accepts an empty transaction as a waiter.)"""

    def __init__(self, log: Log) -> None:
        self.batches: list[int] = []
        self.transaction = Transaction(log)
        self.transaction.done = lambda: self.batches.append(log.committed)
        log.wait(self.transaction)


def message(body: bytes | list[bytes] = b"body", **kwargs: Any) -> Message:
    size = len(body) if isinstance(body, bytes) else sum(map(len, body))
    return Message(kwargs.pop("address", ADDRESS), kwargs.pop("header", HEADER), body, size, True, **kwargs)


def content(item: Message) -> bytes:
    return whole(item.body)


class Harness:
    """A log and its event loop; `reopen` closes and reopens the log."""

    def __init__(self, make: Callable[[], Log], when_idle: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.make = make
        self.when_idle = when_idle
        self.begin()

    def begin(self) -> None:
        self.loop = Loop()
        self.log = self.make()
        self.recovery: Recovery = self.log.open()
        self.log.start(self.loop.post, self.when_idle)

    def reopen(self) -> Recovery:
        self.log.close()
        self.begin()
        return self.recovery

    def commit(self) -> int:
        """Flush, and wait until everything pending is committed."""
        batch = self.log.filling
        waiter = Waiter(self.log)
        self.log.flush()
        self.loop.run_until(lambda: bool(waiter.batches))
        return batch

    def publish(self, queue: FakeQueue, *bodies: bytes, **kwargs: Any) -> list[Entry]:
        entries = [queue.entry(message(body, **kwargs)) for body in bodies]
        for entry in entries:
            self.log.store(entry)
        return entries

    def load(self, rows: array[int], slots: array[int]) -> list[Loaded]:
        result: list[list[Loaded]] = []
        self.log.load(rows, slots, result.append)
        self.loop.run_until(lambda: bool(result))
        return result[0]

    def load_entries(self, entries: list[Entry]) -> list[Loaded]:
        return self.load(
            array("Q", [entry.row.id for entry in entries if entry.row is not None]),
            array("I", [entry.slot for entry in entries]),
        )

    def load_queue(self, queue_id: int) -> list[Loaded]:
        recovered = self.recovery.queues.get(queue_id)
        if recovered is None:
            return []
        loaded = self.load(recovered.rows, recovered.slots)
        assert [item.seq for item in loaded] == list(recovered.seqs)
        assert [item.message.size for item in loaded] == list(recovered.sizes)
        assert [item.message.priority for item in loaded] == list(recovered.priorities)
        return loaded

    def bodies(self, queue_id: int) -> list[bytes]:
        """Return the bodies of a recovered queue, in order."""
        return [content(item.message) for item in self.load_queue(queue_id)]


def entry_of(queue: FakeQueue, loaded: Loaded) -> Entry:
    """Return the entry that a broker creates from a loaded one."""
    entry = Entry(queue.queue, loaded.message, loaded.seq)
    entry.row = loaded.row
    entry.slot = loaded.slot
    entry.overlay = loaded.overlay
    entry.acquired_count = loaded.acquired_count
    entry.delivery_count = loaded.delivery_count
    return entry


def sqlite_log(path: Path, **kwargs: Any) -> SqliteLog:
    """Return a log in SQLite. With LEVERET_TEST_STORE=postgresql, a durable one is in a database of its own instead."""
    if SELECTED and kwargs.get("durable", True):
        kwargs.pop("reserve_bytes", None)
        return postgres_log(database_of(path), **kwargs)  # type: ignore[return-value]
    kwargs.setdefault("reserve_bytes", 0)
    return SqliteLog(path, **kwargs)


def postgres_log(dsn: str, **kwargs: Any) -> Log:
    """Return a log in a database without standbys."""
    # Imported here because most tests do without PostgreSQL.
    from leveret.storage.postgres import PostgresLog

    settings = ClusterSettings(dsn, kwargs.pop("node", "test"), kwargs.pop("lease", 0.6), True)
    marker = kwargs.pop("marker", None) or Path(tempfile.mkdtemp(prefix="leveret-marker-")) / "marker"
    return PostgresLog(settings, marker, **kwargs)


def log_at(place: Path | str) -> Log:
    """Return a log in a data directory, or in the database with this address."""
    return sqlite_log(place) if isinstance(place, Path) else postgres_log(place)


def memory_log(path: Path) -> MemoryLog:
    return MemoryLog()

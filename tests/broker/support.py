"""A broker in one process without sockets, disk or clock, for the tests of the broker core.

`World` has a broker over a log that commits at the end of each turn, or on request (`HeldLog`). Everything runs on
request: `end_turn` ends the turn, `run` runs what was posted to the event loop, `sleep` moves the clock.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from leveret.broker.bodies import Body, whole
from leveret.broker.broker import Broker, HeaderReader, VhostSettings
from leveret.broker.consumer import NO_CLIENT, Consumer, UnackedOwner
from leveret.broker.log import CommitWaiter, Loaded, Located, RecoveredQueue, Recovery, RowIndex
from leveret.broker.message import AT_ONCE, FORMAT_AMQP0, Entry, Message, make_address
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.registry import SERVE_UNINDEXED
from leveret.broker.routing import Route
from leveret.broker.segments import SegmentSettings, SegmentStore
from leveret.broker.timers import Timers
from leveret.broker.values import FieldTable
from leveret.security.patterns import compile_pattern
from leveret.storage.memory import MemoryLog, MemoryRow
from tests.support.queues import classic

START = 1_700_000_000_000


class Clock(Timers):
    """The broker's timers over a clock that moves only on request."""

    def __init__(self, time: int = START) -> None:
        super().__init__()
        self.time = time

    def now(self) -> int:
        return self.time


class LocatedEntries(Located):
    """Entries at the positions of a store in memory."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(array("Q"), len(entries))
        self.entries = entries
        self.released = False

    def release(self) -> None:
        assert not self.released
        self.released = True


class HeldLog(MemoryLog):
    """A log in memory that behaves like an engine on disk: one commit at a time, which returns on request.

    `held` False makes commits return at the end of the turn, and `behind` is the result of `is_behind`. `recovery` returns
    the state that a start would find after a crash: the committed entries as stored and updated.
    """

    def __init__(self, held: bool = False) -> None:
        super().__init__()
        self.held = held
        self.behind = False
        self.metadata: dict[tuple[str, str], bytes] = {}
        self.flying: tuple[int, list[CommitWaiter], list[Any]] | None = None
        self.changes: list[Any] = []
        self.kept: dict[tuple[int, int], tuple[Entry, int, int]] = {}
        self.last_seq: dict[int, int] = {}

    def store(self, entry: Entry) -> None:
        super().store(entry)
        self.changes.append(("store", entry, entry.acquired_count, entry.delivery_count))

    def update(self, entry: Entry) -> None:
        self.changes.append(("store", entry, entry.acquired_count, entry.delivery_count))
        self._dirty = True

    def settle(self, entry: Entry) -> None:
        super().settle(entry)
        self.changes.append(("settle", entry.queue.id, entry.seq))

    def settle_range(self, queue_id: int, first: int, last: int, keep: Any, rows: Any, slots: Any) -> None:
        for row_id, slot in zip(rows, slots, strict=True):
            row = self.rows.get(row_id)
            entry = row.entries[slot] if isinstance(row, MemoryRow) else None
            if entry is not None:
                assert entry.queue.id == queue_id and first <= entry.seq <= last and entry.seq not in keep
                self.changes.append(("settle", queue_id, entry.seq))
        super().settle_range(queue_id, first, last, keep, rows, slots)

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        super().put(kind, key, value)
        self.changes.append(("put", kind, key, value))

    def is_awaited(self) -> bool:
        return True

    def is_behind(self) -> bool:
        return self.behind

    def has_pending(self) -> bool:
        return self._dirty or self.flying is not None

    def flush(self) -> None:
        while self.flying is None and self.completion is None and (self._dirty or self._waiters):
            self.flying = (self.filling, self._waiters, self.changes)
            self.filling += 1
            self._dirty = False
            self._waiters = []
            self.changes = []
            row = self._row
            self._row = None
            if row is not None and not row.live:
                self.rows.pop(row.id, None)
            if self.held:
                return
            self.release()

    def release(self) -> None:
        """Return from the commit in progress; the next one begins."""
        assert self.flying is not None, "no commit is under way"
        batch, waiters, changes = self.flying
        self.flying = None
        self.committed = batch
        for change in changes:
            self._apply(change)
        for waiter in waiters:
            waiter.committed(batch)
        if self.held:
            self.flush()

    def release_all(self) -> None:
        self.flush()
        while self.flying is not None:
            self.release()

    def _apply(self, change: Any) -> None:
        what = change[0]
        if what == "put":
            if change[3] is None:
                self.metadata.pop((change[1], change[2]), None)
            else:
                self.metadata[change[1], change[2]] = change[3]
        elif what == "store":
            entry = change[1]
            self.kept[entry.queue.id, entry.seq] = change[1:]
            self.last_seq[entry.queue.id] = max(entry.seq, self.last_seq.get(entry.queue.id, 0))
        else:
            self.kept.pop((change[1], change[2]), None)

    def load(self, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        def with_stored_counts(loaded: list[Loaded]) -> None:
            for item in loaded:
                row = item.row
                assert isinstance(row, MemoryRow)
                entry = row.entries[item.slot]
                known = self.kept.get((entry.queue.id, entry.seq)) if entry is not None else None
                item.acquired_count, item.delivery_count = known[1:] if known is not None else (0, 0)
            done(loaded)

        super().load(rows, slots, with_stored_counts)

    def locate(self, rows: array[int], slots: array[int]) -> Located | None:
        found: list[Entry] = []
        for row_id, slot in zip(rows, slots, strict=True):
            row = self.rows[row_id]
            assert isinstance(row, MemoryRow)
            entry = row.entries[slot]
            assert entry is not None, "a settled entry was asked for"
            found.append(entry)
        return LocatedEntries(found)

    def recovery(self, clean: bool = False) -> tuple[HeldLog, Recovery]:
        """Return a new log with everything that this one has committed or recovered."""
        log = HeldLog()
        recovery = Recovery()
        recovery.clean = clean
        recovery.metadata = dict(self.metadata)
        log.metadata = dict(self.metadata)
        recovery.last_seq = dict(self.last_seq)
        log.last_seq = dict(self.last_seq)
        for (queue_id, seq), (entry, acquired, delivered) in sorted(self.kept.items(), key=lambda item: item[0]):
            old = entry.message
            message = Message(
                old.address,
                old.header,
                old.body,
                old.size,
                True,
                old.priority,
                old.expires_at,
                old.headers_at,
                0,
                old.format,
            )
            copy = Entry(entry.queue, message, seq)
            copy.overlay = entry.overlay
            copy.acquired_count = acquired
            copy.delivery_count = delivered
            log.store(copy)
            queue = recovery.queues.setdefault(queue_id, RecoveredQueue())
            queue.seqs.append(seq)
            assert copy.row is not None
            queue.rows.append(copy.row.id)
            queue.slots.append(copy.slot)
            queue.priorities.append(old.priority)
            queue.sizes.append(old.size)
        log.flush()
        return log, recovery


class HeldIndex(RowIndex):
    """The rows of a recovery, which are indexed on request."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self.found = dict(recovery.queues)
        self.done: Callable[[], None] | None = None
        recovery.queues.clear()
        recovery.index = self

    def run(self) -> None:
        self.recovery.queues.update(self.found)

    def start(self, done: Callable[[], None]) -> None:
        self.done = done

    def adopting(self) -> Iterator[int]:
        self.run()
        yield 1

    def progress(self) -> float:
        return 0.5


class JsonReader(HeaderReader):
    """The test encoding of properties: JSON."""

    def headers(self, message: Message) -> dict[str, Any]:
        return dict(json.loads(message.header).get("headers", {})) if message.header else {}

    def property(self, message: Message, name: str) -> str:
        return str(json.loads(message.header).get(name, "")) if message.header else ""

    def expiration(self, message: Message) -> str | None:
        return json.loads(message.header).get("expiration") if message.header else None

    def make_header(self, content_type: str, size: int) -> bytes:
        return json.dumps({"content-type": content_type}).encode()

    def make_headers(self, headers: FieldTable, size: int) -> tuple[bytes, int]:
        return json.dumps({"headers": headers}, default=str).encode(), 0

    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        return (json.loads(message.header) if message.header else {}), message.body


class Taker(Consumer):
    """A consumer with credit for `credit` entries, -1 for no limit; `taken` has the delivered ones.

    With `only` it is selective: it wants messages whose body begins with this text.
    """

    def __init__(
        self,
        queue: Queue,
        tag: str = "c",
        *,
        credit: int = -1,
        no_ack: bool = False,
        priority: int = 0,
        exclusive: bool = False,
        owner: object = None,
        scope: object = None,
        only: bytes | None = None,
        join: bool = True,
    ) -> None:
        super().__init__(queue, tag, owner, None, no_ack, exclusive, priority, {}, scope or object())
        self.credit = credit
        self.only = only
        if only is not None:
            self.select()
        self.taken: list[Entry] = []
        self.history: list[str] = []
        self.gone = False
        if join:
            queue.add_consumer(self)

    def has_credit_for(self, size: int) -> bool:
        return self.credit != 0

    def wants(self, message: Message, entry: Entry | None) -> bool:
        return self.only is None or body_of(message).startswith(self.only)

    def deliver(self, entry: Entry) -> None:
        if self.credit > 0:
            self.credit -= 1
        self.taken.append(entry)
        self.history.append(text_of(entry))

    def queue_deleted(self) -> None:
        self.gone = True

    def give(self, credit: int) -> None:
        """Grant more credit, and wake the consumer."""
        self.credit = credit
        self.wake()

    def bodies(self) -> list[str]:
        return [text_of(entry) for entry in self.taken]

    def ack(self, count: int = 1) -> None:
        for _ in range(count):
            entry = self.taken.pop(0)
            entry.queue.settle(entry)

    def requeue(self, index: int = 0) -> None:
        entry = self.taken.pop(index)
        entry.queue.requeue(entry)

    def requeue_all(self) -> None:
        while self.taken:
            self.requeue(-1)


class Keeper(UnackedOwner):
    """An owner of unacked entries of a queue, for purges and deletions."""

    def __init__(self, *takers: Taker) -> None:
        self.takers = takers
        self.entries: list[Entry] = []
        self.batches: list[int] = []

    def all_unacked(self) -> list[Entry]:
        own = [*self.entries, *(entry for taker in self.takers for entry in taker.taken)]
        return own

    def committed(self, batch: int) -> None:
        self.batches.append(batch)


def body_of(message: Message) -> bytes:
    return whole(message.body)


def deaths_in(headers: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of `x-death`."""
    deaths: list[dict[str, Any]] = headers["x-death"]
    return deaths


def text_of(entry: Entry) -> str:
    return body_of(entry.message).decode()


class World:
    """A broker with one vhost, `/`. With a `store`, it seals streams according to `sealing`."""

    def __init__(
        self,
        *,
        log: MemoryLog | None = None,
        overflow: bool = False,
        page_above: int = 64 << 20,
        strict: bool = False,
        recovery: Recovery | None = None,
        time: int = START,
        clock: Clock | None = None,
        store: SegmentStore | None = None,
        sealing: SegmentSettings | None = None,
    ) -> None:
        self.posted: list[Callable[[], None]] = []
        self.log = log if log is not None else HeldLog()
        self.log.start(self.posted.append)
        self.overflow: HeldLog | None = None
        if overflow:
            self.overflow = HeldLog()
            self.overflow.start(self.posted.append)
        self.broker = Broker(self.log, self.overflow)
        self.broker.compile_pattern = compile_pattern
        self.broker.jobs.call_soon = self.posted.append
        self.clock = clock if clock is not None else Clock(time)
        self.broker.timers = self.clock
        self.broker.page_above = page_above
        self.broker.header_readers[FORMAT_AMQP0] = JsonReader()
        if store is not None:
            store.start(self.posted.append)
            self.broker.seal_streams(store, sealing or SegmentSettings())
            recovery = recovery or Recovery()
        if recovery is not None:
            self.broker.indexing.begin(recovery, SERVE_UNINDEXED)
            self.broker.recover(recovery)
        self.vhost = self.broker.add_vhost("/", VhostSettings(strict=strict))
        if recovery is not None:
            self.broker.start()
        self.broker.end_turn()

    @property
    def held_log(self) -> HeldLog:
        assert isinstance(self.log, HeldLog)
        return self.log

    def queue(self, name: str = "q", **properties: Any) -> ClassicQueue:
        """Declare a queue that is not a stream."""
        return classic(self.declare(name, **properties))

    def declare(
        self,
        name: str = "q",
        *,
        durable: bool = False,
        owner: object = None,
        exclusive: bool = False,
        auto_delete: bool = False,
        **arguments: Any,
    ) -> Queue:
        """Declare a queue of any type; `max_length=3` is the argument `x-max-length`."""
        named = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        return self.vhost.declare_queue(
            name, owner, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=named
        )

    def message(
        self,
        body: str = "m",
        *,
        exchange: str = "",
        key: str = "",
        persistent: bool = False,
        priority: int = -1,
        ttl: int | None = None,
        headers: dict[str, Any] | None = None,
        publisher: int = 0,
        **properties: str,
    ) -> Message:
        encoded = body.encode()
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if ttl is not None:
            more["expiration"] = str(ttl)
        more.update(properties)
        expires_at = 0 if ttl is None else self.clock.now() + ttl if ttl else AT_ONCE
        return Message(
            make_address(exchange, key),
            json.dumps(more).encode(),
            encoded,
            len(encoded),
            persistent,
            priority,
            expires_at,
            0 if headers else -1,
            publisher,
        )

    def push(self, queue: Queue, *bodies: str, **options: Any) -> bool:
        """Push messages in this turn; return whether the queue accepted all of them."""
        taken = [queue.push(self.message(body, key=queue.name, **options)) for body in bodies]
        return all(taken)

    def publish(self, exchange: str, key: str, body: str = "m", **options: Any) -> list[str]:
        """Route and push one message; return the names of its queues."""
        message = self.message(body, exchange=exchange, key=key, **options)
        route = self.vhost.route(message.address)
        queues = self.vhost.route_message(route, message, [], NO_CLIENT) if route.dynamic else route.queues
        for queue in queues:
            queue.push(message)
        return sorted(queue.name for queue in queues)

    def route(self, exchange: str, key: str = "") -> list[str]:
        """Return the names of a message's queues, as cached; duplicates are visible."""
        return names(self.vhost.route(make_address(exchange, key)))

    def end_turn(self) -> None:
        self.broker.end_turn()

    def run(self) -> None:
        """End the turn, then run posted callbacks until there are none."""
        self.broker.end_turn()
        while self.posted:
            self.posted.pop(0)()
            self.broker.end_turn()

    def sleep(self, milliseconds: int) -> None:
        """Move the clock, and fire due timers."""
        self.clock.time += milliseconds
        self.clock.run(self.clock.time)
        self.run()
        while 0 < self.clock.next_due() <= self.clock.time:
            self.clock.run(self.clock.time)
            self.run()

    def get(self, queue: Queue) -> str | None:
        """Do a basic.get with an acknowledgement."""
        while True:
            entry = queue.get(True)
            if entry is not None:
                return text_of(entry)
            if not queue.paging.must_load():
                return None
            assert self.posted, "nothing is on its way, but the queue says so"
            self.run()

    def contents(self, queue: Queue) -> list[str]:
        """Return all ready messages in the order of `basic.get`; the queue is empty afterwards."""
        found: list[str] = []
        while True:
            body = self.get(queue)
            if body is None:
                return found
            found.append(body)


def names(route: Route) -> list[str]:
    return sorted(queue.name for queue in route.queues)


def figures(queue: Queue) -> tuple[int, int, int]:
    """Return the numbers of ready entries, their bytes, and unacked entries."""
    return queue.ready_count, queue.ready_bytes, queue.unacked

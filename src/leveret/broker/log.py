"""The log that the broker writes to: group commits of records, behind one interface that storage engines implement.

Within one turn of the event loop the broker calls `store`, `settle` and the rest; each adds a record to the batch
being filled. `flush` ends the turn: unless a commit is running, everything pending becomes one commit, on a thread of
the engine. The changes of one turn are never split over two commits, which makes transactions atomic. After a commit,
the waiters of its batch are notified on the event loop.

Positions: an entry or a message is identified by (row id, slot). The broker's positions never change: when the engine
copies survivors of a row elsewhere, it keeps the old position resolvable for as long as a live object has it.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from leveret.broker.bodies import Spool, StoredBody
from leveret.broker.durations import Durations
from leveret.broker.message import Entry

if TYPE_CHECKING:
    from leveret.broker.message import Message, Overlay
    from leveret.broker.queues.queue import Queue
    from leveret.broker.queues.record_batches import RecordBatch

OK = "ok"
FULL = "full"
AWAY = "away"
FAILED = "failed"


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitWaiter:
    """Callback for when a log commit is on disk. A native base class, which keeps the call cheap when compiled."""

    @abstractmethod
    def committed(self, batch: int) -> None:
        """Handle that a batch is on disk."""


class Row:
    """A row of the log in memory: the target of positions, with the counters for trimming.

    id      the row's number; never reused
    log     the log that it belongs to
    size    bytes on disk
    live    number of records that must be kept; at zero the row is deleted with the next commit
    slots   one byte per record: not zero while it is live; settlements of the current batch may be missing

    Engines add attributes of their own.
    """

    __slots__ = ("batch", "id", "live", "log", "size", "slots")

    def __init__(self, log: Log, id: int, batch: int) -> None:
        self.log = log
        self.id = id
        self.batch = batch
        self.size = 0
        self.live = 0
        self.slots = bytearray()


class Loaded:
    """An entry read back from the log, or from a segment, which has its append time in milliseconds as `time`."""

    __slots__ = ("acquired_count", "delivery_count", "message", "overlay", "row", "seq", "slot", "time")

    def __init__(
        self,
        seq: int,
        row: Row,
        slot: int,
        message: Message,
        overlay: Overlay | None,
        acquired_count: int,
        delivery_count: int,
    ) -> None:
        self.seq = seq
        self.row = row
        self.slot = slot
        self.message = message
        self.overlay = overlay
        self.acquired_count = acquired_count
        self.delivery_count = delivery_count
        self.time = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Located:
    """Positions of entries on disk for another process to read. Their rows stay until `release`.

    runs   five words ('Q') for each run of entries with consecutive slots: row id, first slot, count; row id and first
           slot of their messages, 0 and 0 if the entries contain them
    count  number of the entries
    """

    def __init__(self, runs: array[int], count: int) -> None:
        self.runs = runs
        self.count = count

    @abstractmethod
    def release(self) -> None:
        """Release the rows after reading. Called once, on the event loop."""


class RowsAddress:
    """The place of the rows of a log, for another process to read them.

    engine    the storage engine
    fields    what its `storage.row_sources.RowSource` needs, which may include a password
    is_local  whether only processes on this machine can open the log again
    """

    def __init__(self, engine: str, fields: dict[str, Any], *, is_local: bool) -> None:
        self.engine = engine
        self.fields = fields
        self.is_local = is_local


@mypyc_attr(allow_interpreted_subclasses=True)
class LogCopy:
    """A copy of a log in a file, which the engine's thread writes. Its attributes may be read at any time.

    copied, total  bytes; both may grow
    is_complete    whether the copy is on disk
    problem        why the copy was given up, "" if it was not
    """

    def __init__(self) -> None:
        self.copied = 0
        self.total = 0
        self.is_complete = False
        self.problem = ""

    @abstractmethod
    def cancel(self) -> None:
        """Give up the copy unless it is complete."""


class RecoveredQueue:
    """The live entries of one queue after a start, compact and in the order of their sequence numbers.

    seqs, rows ('Q') and slots ('I') run in parallel, and so do `priorities` ('h', -1 if the publisher gave none) and
    `sizes` ('I').
    """

    __slots__ = ("priorities", "rows", "seqs", "sizes", "slots")

    def __init__(self) -> None:
        self.seqs: array[int] = array("Q")
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.priorities: array[int] = array("h")
        self.sizes: array[int] = array("I")

    def truncate(self, count: int) -> None:
        """Keep only the first `count` entries, and free the memory of the others."""
        del self.seqs[count:]
        del self.rows[count:]
        del self.slots[count:]
        del self.priorities[count:]
        del self.sizes[count:]


@mypyc_attr(allow_interpreted_subclasses=True)
class RowIndex:
    """The rows of a large log, which are not indexed yet when it is opened. They are indexed once, by `run` or `start`."""

    @abstractmethod
    def run(self) -> None:
        """Index the rows now, and complete the recovery. Blocking. Raises `StorageFailed` if they are damaged."""

    @abstractmethod
    def start(self, done: Callable[[], None]) -> None:
        """Index the rows in a thread, after the start of the log. `done` is called on the event loop.

        If the rows are damaged, the log fails instead, and the next start names the damage.
        """

    @abstractmethod
    def adopting(self) -> Iterator[int]:
        """Add the rows to the log, in steps, after `done` was called. After the last step, the recovery is complete."""

    @abstractmethod
    def progress(self) -> float:
        """Return the part of the rows that has been read, from 0 to 1."""


class Recovery:
    """The contents of a log at its start.

    clean      whether the log was closed properly; otherwise every entry may have been delivered before
    metadata   (kind, key) to the last value
    queues     by queue id
    last_seq   by queue id: the highest sequence number in the log, so that none is used twice
    dropped    (kind, key) of damaged metadata that was dropped at the operator's request
    index      the rows that are still to be indexed: until then `queues` is empty; None if everything is indexed
    occupied   ids of the queues that had entries when the log was closed; None if that is unknown
    """

    def __init__(self) -> None:
        self.clean = True
        self.metadata: dict[tuple[str, str], bytes] = {}
        self.queues: dict[int, RecoveredQueue] = {}
        self.last_seq: dict[int, int] = {}
        self.dropped: list[tuple[str, str]] = []
        self.index: RowIndex | None = None
        self.occupied: frozenset[int] | None = None


def append_positions(rows: array[int], slots: array[int], messages: list[Message]) -> None:
    """Append the positions of messages that were stored one after the other, as by `Log.store_run`."""
    index = 0
    count = len(messages)
    while index < count:
        message = messages[index]
        row = message.row
        assert row is not None
        end = index + 1
        if messages[count - 1].row is row:
            end = count
        while end < count and messages[end].row is row:
            end += 1
        # The slots of a row are given out in order.
        rows.extend(array("Q", (row.id,)) * (end - index))
        slots.extend(array("I", range(message.slot, message.slot + end - index)))
        index = end


@mypyc_attr(allow_interpreted_subclasses=True)
class Log:
    """A log of group commits.

    filling    number of the current batch, which new records join
    committed  number of the last batch that is on disk; batches commit in order
    state      OK, FULL (no space: publishers must stop, settlements continue), AWAY (nothing is committed until the server
               with the log is back: publishers must stop) or FAILED (no more commits)
    reason     the reason for a state other than OK, as text
    pending_bytes  bytes accepted and not yet on disk: the measure for backpressure
    pending_spooled  the part of them in the spool, which causes no backpressure on clients without data there
    rows       the rows in memory by id
    spool      storage for large bodies; None if they stay in memory
    may_reopen  whether a failed log may be opened again by this process; not if another broker has taken it over
    """

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
        self.may_reopen = True
        self.filling = 1
        self.committed = 0
        self.state = OK
        self.reason = ""
        self.pending_bytes = 0
        self.pending_spooled = 0
        self.rows: dict[int, Row] = {}
        self.spool: Spool | None = None
        # Called on the event loop whenever `state` changes.
        self.on_state: Callable[[], None] | None = None
        # Called from time to time while a log is opened and recovered; it must not raise.
        self.on_progress: Callable[[], None] | None = None
        # Completes the current batch at once while it is held open.
        self.completion: Callable[[], None] | None = None

    # Lifecycle

    @abstractmethod
    def open(self, index_later: bool = False) -> Recovery:
        """Open or create the store and recover it. Blocking: called before the event loop runs.

        With `index_later`, the rows of a large log are left to the caller to index: see `Recovery.index`.

        Raises `StorageFailed` with the problem and its remedy: locked, newer format, damaged.
        """

    @abstractmethod
    def start(
        self, post: Callable[[Callable[[], None]], None], when_idle: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        """Start to commit.

        `post` runs a callable on the event loop, from any thread. `when_idle` runs one on the event loop, once, when the
        loop has nothing else to do; None if that is not known.
        """

    @abstractmethod
    def close(self) -> None:
        """Commit pending changes, mark the store as cleanly closed, and release it. Blocks."""

    def note_occupied(self, queue_ids: list[int]) -> None:
        """Note which queues have entries, after the last change and before the log is closed (`Recovery.occupied`)."""

    def fail(self, reason: str) -> None:
        """Commit nothing more, because the recovery cannot be completed."""
        self.state = FAILED
        self.reason = reason
        if self.on_state is not None:
            self.on_state()

    def is_silent(self) -> bool:
        """Return whether another process may have taken over the log, so that nothing must be delivered."""
        return False

    def clock(self) -> float:
        """Return the Unix time of the store less the monotonic clock, 0 if the store has no clock of its own."""
        return 0.0

    def find_takers(self, answer: Callable[[bool], None]) -> None:
        """Find out whether other processes would take over the log if it was released. Calls `answer` on the event loop."""
        answer(False)

    # Records of the current batch (the hot path: no exceptions, no I/O)

    @abstractmethod
    def store(self, entry: Entry) -> None:
        """Add an entry of a queue, with its message unless the log has it already (`message.row` is set).

        Sets `row` and `slot` of both. An overlay and the two counts are stored with the entry.
        """

    def store_run(self, queue: Queue, messages: list[Message], first: int, stop: int, seq: int) -> None:
        """Add the messages from `first` up to `stop` (exclusive) as entries with the sequence numbers from `seq` on.

        No log has the messages yet. Sets their `row` and `slot`, which are those of their entries, too.
        """
        for index in range(first, stop):
            self.store(Entry(queue, messages[index], seq + index - first))

    @abstractmethod
    def settle(self, entry: Entry) -> None:
        """Remove an entry, which must be in this log. Called once per entry."""

    @abstractmethod
    def settle_range(
        self, queue_id: int, first: int, last: int, keep: Iterable[int], rows: Iterable[int], slots: Iterable[int]
    ) -> None:
        """Settle the entries of a queue at these positions.

        Their sequence numbers are from `first` to `last`, and not in `keep`.
        """

    @abstractmethod
    def update(self, entry: Entry) -> None:
        """Record changed counts or a changed overlay of an entry; recovery returns the last update."""

    @abstractmethod
    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Change the metadata: set (kind, key), or delete it with None."""

    @abstractmethod
    def forget(self, queue_id: int) -> None:
        """Forget the sequence numbers of a deleted queue, whose id will not be used again."""

    def write_ahead(
        self, header: bytes, body: StoredBody, done: Callable[[StoredBody], None], wanted: Callable[[], bool]
    ) -> bool:
        """Write a large message, piece by piece between other commits, before it is published.

        Returns False for a message that can be published at once. Otherwise `done` is called on the event loop when the
        message is on disk, with the body to publish it with, at once or later, and with the same header. The record that
        `store` then adds refers to the message on disk. If that body is released without such a record, or once `wanted`
        returns False, the pieces on disk are removed.
        """
        return False

    # End of the turn

    @abstractmethod
    def wait(self, waiter: CommitWaiter) -> None:
        """Notify the waiter when the current batch is on disk, once per call."""

    def is_awaited(self) -> bool:
        """Return whether the current commit has waiters; if not, it can be delayed to gather more."""
        return True

    def has_pending(self) -> bool:
        """Return whether accepted changes are not on disk yet."""
        return self.pending_bytes > 0

    def is_behind(self) -> bool:
        """Return whether the next commit is so large already that removals should wait for it."""
        return False

    @abstractmethod
    def flush(self) -> None:
        """End the turn: start a commit unless one is running, nothing is pending, or the batch is held open."""

    def begin_batch(self, complete: Callable[[], None]) -> None:
        """Keep the current batch open: changes until `end_batch`, in several turns, are one commit.

        Only one caller at a time may do so. If the log is closed before that, it calls `complete`, which adds the rest
        and ends the batch.
        """
        self.completion = complete

    def end_batch(self) -> None:
        """End a batch that was held open."""
        self.completion = None

    def complete_batch(self) -> None:
        """Complete a batch that is held open."""
        completion = self.completion
        if completion is not None:
            completion()

    # Paging

    @abstractmethod
    def load(self, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        """Read entries back; `done` is called on the event loop with one `Loaded` per position, in the same order.

        The engine's thread reads between commits, whole rows at a time, in pieces small enough that a commit is not delayed
        long. An entry settled in the meantime is still returned; the caller checks that. The entries' batch must be
        committed.
        """

    def load_record_batches(
        self, rows: array[int], slots: array[int], first: int, time: int, done: Callable[[list[RecordBatch]], None]
    ) -> bool:
        """Read consecutive entries of a stream back as record batches, without an object for each of them.

        `first` is the sequence number of the first one, `time` their append time. `done` is called on the event loop, with
        an empty list if they can only be loaded. Returns False, without a call, if that is known at once.
        """
        return False

    def locate(self, rows: array[int], slots: array[int]) -> Located | None:
        """Return the positions of committed entries on disk. Only for a log with a `rows_address`.

        Returns None if some are still being written: retry after the next commit.
        """
        raise UnsupportedOperation(f"{type(self).__name__} has no rows in which to locate entries")

    def rows_address(self) -> RowsAddress | None:
        """Return where other processes may read entries by the positions of `locate`; None if they cannot.

        Only for an open log.
        """
        return None

    def copy_to(self, path: str, keep_free: int) -> LogCopy:
        """Start to copy the log to a new file, in slices between commits. Only for an open log with a file.

        The copy has everything that was committed before the call, and everything that is committed until it is complete.

        Args:
            path: The new file.
            keep_free: Bytes to leave free on the disk of the new file.
        """
        raise UnsupportedOperation(f"{type(self).__name__} has no file to copy")

    @abstractmethod
    def statistics(self) -> dict[str, int]:
        """Return figures for `leveret status`: bytes on disk and live, rows, commits, free disk space."""

    def describe(self) -> str:
        """Return where the log is stored, for operators, if the data directory does not tell; otherwise ""."""
        return ""

    def commit_durations(self) -> Durations | None:
        """Return the durations of commits; None for an engine that writes nothing to disk."""
        return None

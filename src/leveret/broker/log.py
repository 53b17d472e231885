"""The log that the broker writes to: group commits of records, behind one interface that storage engines implement.

Within one turn of the event loop the broker calls `store`, `settle` and the rest; each adds a record to the batch
being filled. `flush` ends the turn: unless a commit is running, everything pending becomes one commit, in a thread of
the engine's. What one turn added is never split over two commits, which is what makes transactions atomic. When a
commit has returned, the waiters of its batch are told, on the event loop.

Positions: an entry or a message is found again by (row id, slot). They never change for the broker: when the engine
copies survivors of a row elsewhere it keeps the old position resolvable for as long as anything live has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from leveret.broker.bodies import Spool

if TYPE_CHECKING:
    from leveret.broker.message import Entry, Message, Overlay

OK = "ok"
FULL = "full"
FAILED = "failed"


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitWaiter:
    """Callback for when a log commit is on disk. A native base class, which keeps the call cheap when compiled."""

    def committed(self, batch: int) -> None:
        raise NotImplementedError


class Row:
    """A row of the log in memory: what the broker's positions point to, and what trimming counts.

    id      the row's number; never reused
    log     the log that it belongs to
    size    bytes on disk
    live    records in it that must be kept; at zero the row is deleted with the next commit
    slots   one byte a record: not zero while it is live; settlements of the batch being filled may not show yet
    Engines extend it with what is theirs.
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
    """An entry read back from the log, or from a segment: then `time` is when it was appended, in milliseconds."""

    __slots__ = ("acquired_count", "delivery_count", "message", "overlay", "row", "seq", "slot", "time")

    def __init__(self, seq: int, row: Row, slot: int, message: Message, overlay: Overlay | None, acquired_count: int,
                 delivery_count: int) -> None:
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
    """Where entries stand on disk, for another process to read them there. Their rows stay as they are until `release`.

    runs   five words ('Q') for each run of entries whose slots follow each other: row id, first slot, how many; row id and
           first slot of their messages, 0 and 0 where the entries hold these themselves
    count  of the entries
    """

    def __init__(self, runs: array[int], count: int) -> None:
        self.runs = runs
        self.count = count

    def release(self) -> None:
        """They were read. Called once, on the event loop."""
        raise NotImplementedError


class RecoveredQueue:
    """The live entries of one queue after a start, compact and in the order of their sequence numbers.

    seqs, rows ('Q'), slots ('I') run in parallel; `priorities` ('h', -1 where the publisher gave none) and `sizes` ('I')
    too.
    """

    __slots__ = ("priorities", "rows", "seqs", "sizes", "slots")

    def __init__(self) -> None:
        self.seqs: array[int] = array("Q")
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.priorities: array[int] = array("h")
        self.sizes: array[int] = array("I")


class Recovery:
    """What a log held at its start.

    clean      the log was closed properly; otherwise every entry may have been handed out before
    metadata   (kind, key) to value, as put last
    queues     by queue id
    last_seq   by queue id: the highest sequence number that the log has seen, so that none is used twice
    dropped    (kind, key) of metadata that was damaged, and given up at the operator's request
    """

    def __init__(self) -> None:
        self.clean = True
        self.metadata: dict[tuple[str, str], bytes] = {}
        self.queues: dict[int, RecoveredQueue] = {}
        self.last_seq: dict[int, int] = {}
        self.dropped: list[tuple[str, str]] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class Log:
    """A log of group commits.

    filling    number of the batch that records go into now
    committed  number of the last batch that is on disk; batches commit in order
    state      OK, FULL (no space: publishers must stop, settling goes on) or FAILED (nothing will commit any more)
    reason     why, in words, where the state is not OK
    pending_bytes  bytes accepted and not yet on disk: the measure for back pressure
    pending_spooled  those of them that are in the spool: no measure for back pressure on those who have none there
    rows       the rows in memory by id
    spool      where large bodies go instead of memory, None where there is no such place
    """

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
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
        # While the batch being filled is held open: what completes it at once.
        self.completion: Callable[[], None] | None = None

    # The life of a log

    def open(self) -> Recovery:
        """Open or create the store and recover it. Blocking: called before the event loop runs.

        Raises `StorageFailed` with a message that says what is wrong and what to do: locked, newer format, damaged.
        """
        raise NotImplementedError

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin committing. `post` runs a callable on the event loop, from any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Commit pending changes, mark the store as cleanly closed, and release it. Blocks."""
        raise NotImplementedError

    # Records of the batch being filled (the hot path: no exceptions, no I/O)

    def store(self, entry: Entry) -> None:
        """Add an entry of a queue; its message too, unless the log holds it already (`message.row` is set).

        Sets `row` and `slot` of both. An overlay and the two counts are stored with the entry.
        """
        raise NotImplementedError

    def settle(self, entry: Entry) -> None:
        """Remove an entry, which must be in this log. Called once per entry."""
        raise NotImplementedError

    def settle_range(self, queue_id: int, first: int, last: int, keep: Iterable[int],
                     rows: Iterable[int], slots: Iterable[int]) -> None:
        """The entries of a queue at the positions `rows` and `slots` are gone. Their sequence numbers are from first to
        last, and not among those in `keep`."""
        raise NotImplementedError

    def update(self, entry: Entry) -> None:
        """Record changed counts or a changed overlay of an entry; recovery returns the last update."""
        raise NotImplementedError

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Change the metadata: set (kind, key), or delete it with None."""
        raise NotImplementedError

    def forget(self, queue_id: int) -> None:
        """A queue was deleted and its id will not be used again: the log need not remember its sequence numbers, if it
        has seen any."""
        raise NotImplementedError

    # The end of the turn

    def wait(self, waiter: CommitWaiter) -> None:
        """Tell the waiter when the batch being filled is on disk. Each call is one call-back."""
        raise NotImplementedError

    def is_awaited(self) -> bool:
        """Return whether the current commit has waiters; if not, it can be delayed to gather more."""
        return True

    def has_pending(self) -> bool:
        """Whether anything that was accepted is not on disk yet."""
        return self.pending_bytes > 0

    def flush(self) -> None:
        """End the turn: start a commit unless one is running, nothing is pending, or the batch is held open."""
        raise NotImplementedError

    def begin_batch(self, complete: Callable[[], None]) -> None:
        """Keep the batch being filled open: what is added until `end_batch`, in several turns, is one commit. One at a time
        holds it. A log that is closed before calls `complete`, which adds the rest and ends the batch."""
        self.completion = complete

    def end_batch(self) -> None:
        """The batch that was held open is complete."""
        self.completion = None

    def complete_batch(self) -> None:
        """Have a batch that is held open completed."""
        completion = self.completion
        if completion is not None:
            completion()

    # Paging

    def load(self, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        """Read entries back; `done` is called on the event loop with one `Loaded` a position, in the same order.

        Reads are done between commits by the engine's thread, whole rows at a time, in pieces small enough that a commit
        does not wait long. An entry settled in the meantime is still returned (the caller knows better).
        Only entries whose batch is committed may be asked for.
        """
        raise NotImplementedError

    def locate(self, rows: array[int], slots: array[int]) -> Located | None:
        """Where committed entries stand on disk; None where some of it is on its way there: ask again after the next
        commit. For a log whose file other processes may read."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """Figures for `leveret status`: bytes on disk and live, rows, commits, free disk space."""
        raise NotImplementedError

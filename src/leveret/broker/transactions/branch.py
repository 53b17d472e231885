"""A branch of a distributed transaction: its content, in memory and in the log, until the coordinator decides.

Channels work in a branch and add their publishes and settlements to it. A prepared branch survives a crash: a record in
the log lists its content, its durable publishes are in the log under a queue number of their own, and the entries that it
settles stay acquired, also after a restart. The decision is one record, too. Before it, the publishes are invisible and
the entries are delivered to no other consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from leveret.broker import metadata, settlement
from leveret.broker.delay import Delay, recovered_delay
from leveret.broker.errors import PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.log import Loaded, RecoveredQueue
from leveret.broker.message import Entry, Message
from leveret.broker.metadata import Record
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.frozen import FrozenQueues, thaw
from leveret.broker.queues.loading import make_entry
from leveret.broker.queues.queue import Queue
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.transactions.branch_recovery import Taken
    from leveret.broker.transactions.branches import Branches
    from leveret.broker.transactions.transaction import Transaction
    from leveret.broker.vhost import Vhost

# States.
ACTIVE: Final = "active"
ENDED: Final = "ended"
PREPARED: Final = "prepared"
ROLLBACK_ONLY: Final = "rollback-only"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"

# Sequence numbers that are sorted in 1 µs, as a power of two.
SORT_SHIFT: Final = 4


class BranchSettings:
    """Limits of the branches of a vhost.

    Attributes:
        timeout: Milliseconds after which an unprepared branch is rolled back; 0 for never.
        count: Maximum number of branches.
        size: Maximum size in bytes of the publishes in all branches.
    """

    def __init__(self, timeout: int = 300_000, count: int = 10_000, size: int = 1 << 30) -> None:
        self.timeout = timeout
        self.count = count
        self.size = size


# In the record of a branch: a number of consecutive publishes, and their queues.
Target: TypeAlias = tuple[int, list[int]]
# The location of settled entries: their queue, the outcome, and runs of sequence numbers.
Place: TypeAlias = tuple[int, int, list[int]]


class Worker(Protocol):
    """A channel that works in a branch.

    Attributes:
        demarcated: Whether the client ends the work; otherwise it ends when the branch is prepared or decided.
    """

    demarcated: bool

    def flushing(self, branch: Branch) -> Iterator[int]:
        """Move the work since the last call to the branch, in steps. The worker forgets it at once."""

    def detached(self) -> None:
        """Notify the worker that the branch was prepared or decided: later work of the channel is not part of it."""

    def rolled_back(self, branch: Branch, reason: str) -> None:
        """Notify the worker that the branch was rolled back: requeue the collected work."""


class Branch:
    """One branch.

    name         the transaction identifier: bytes as text
    workers      channels that work in it
    publishes    messages with their target queues and delays; settlements: entries with their outcomes
    bytes       of the bodies of the publishes
    since        start, or time of preparation: milliseconds of Unix time
    timeout      milliseconds; timed_out: it has passed, but the coordinator was not notified yet
    asked_timeout  timeout set by a client, in seconds, 0 for none
    recorded     whether the log has a record of it
    store        the queue under whose number the log has the durable publishes, which are the entries `stored`
    busy         tasks in progress: reads after a start, work that ends in steps
    then         the decision that waits for those tasks
    deciding     whether a decision was made, or the branch is being prepared
    """

    def __init__(self, branches: Branches, name: str, user: str) -> None:
        self.branches = branches
        self.name = name
        self.user = user
        self.state = ACTIVE
        self.workers: dict[Worker, None] = {}
        self.publishes: list[tuple[Message, list[Queue], Delay | None]] = []
        self.settlements: list[tuple[Entry, int]] = []
        self.bytes = 0
        self.since = branches.broker.timers.now()
        self.timeout = branches.broker.branch_settings.timeout
        self.asked_timeout = 0
        self.timed_out = False
        self.timer = _TimeOut(self)
        self.recorded = False
        self.store: Queue | None = None
        self.stored: list[Entry] = []
        self.busy = 0
        self.then: Callable[[], None] | None = None
        self.deciding = False
        # Publishes and settlements to be read back, and their queues by number.
        self.taken: Taken | None = None
        self.queues: dict[int, Queue] = {}

    def __str__(self) -> str:
        return f"branch '{format_identifier(self.name)}' in vhost '{self.branches.vhost.name}'"

    # For workers

    def publish(self, message: Message, queues: list[Queue], delay: Delay | None = None) -> None:
        self.publishes.append((message, queues, delay))
        self.bytes += message.size
        self.branches.bytes += message.size

    def settle(self, entry: Entry, outcome: int) -> None:
        """Acquire an entry in place of its consumer."""
        settlement.detach(entry)
        self.settlements.append((entry, outcome))

    def join(self, worker: Worker) -> None:
        """Add a worker. Raises PreconditionFailed if the branch is no longer open."""
        if self.state not in (ACTIVE, ENDED) or self.deciding:
            raise PreconditionFailed(f"{self} is {self.state}: it cannot be joined")
        self.workers[worker] = None
        self.state = ACTIVE

    def end(self, worker: Worker, failed: bool) -> None:
        """End the work of a worker, in steps if there is much of it."""
        self.branches.broker.jobs.run_steps(self.ending(worker, failed))

    def ending(self, worker: Worker, failed: bool) -> Iterator[int]:
        """End the work of a worker in steps; `failed` as in `end`."""
        return self.working(self._ending(worker, failed, worker.flushing(self)))

    def _ending(self, worker: Worker, failed: bool, flushing: Iterator[int]) -> Iterator[int]:
        yield from flushing
        self.workers.pop(worker, None)
        if failed and self.is_open():
            self.state = ROLLBACK_ONLY
        elif self.state == ACTIVE and not self.workers:
            self.state = ENDED
        if not self.is_open():
            yield from self.releasing()

    def flushing(self, worker: Worker) -> Iterator[int]:
        """Collect what a worker has done so far, in steps; the worker may continue later."""
        return self.working(self._flushing(worker.flushing(self)))

    def _flushing(self, flushing: Iterator[int]) -> Iterator[int]:
        yield from flushing
        if not self.is_open():
            yield from self.releasing()

    def is_open(self) -> bool:
        """Return whether it can still be prepared, or committed in one phase."""
        return self.state in (ACTIVE, ENDED)

    def fail(self) -> None:
        """Allow only a rollback from now on. This needs no log record."""
        if self.is_open():
            self.state = ROLLBACK_ONLY
        self.release()

    def release(self) -> None:
        """Drop the publishes and requeue the entries, in steps if there are many."""
        if self.publishes or self.settlements:
            self.branches.broker.jobs.removals.add(self.working(self.releasing()))

    def releasing(self) -> Iterator[int]:
        """Drop the publishes and requeue the entries, in steps. The branch forgets them at once."""
        publishes, settlements = self.take()
        return self._releasing(publishes, settlements)

    def _releasing(
        self, publishes: list[tuple[Message, list[Queue], Delay | None]], settlements: list[tuple[Entry, int]]
    ) -> Iterator[int]:
        frozen = FrozenQueues()
        try:
            while settlements:
                yield from logged(_requeuing(settlements, frozen))
        finally:
            frozen.thaw()
        while publishes:
            publishes.pop()
            yield 1

    def take(self) -> tuple[list[tuple[Message, list[Queue], Delay | None]], list[tuple[Entry, int]]]:
        """Remove and return the publishes and settlements."""
        taken = self.publishes, self.settlements
        self.publishes = []
        self.settlements = []
        self.branches.bytes -= self.bytes
        self.bytes = 0
        return taken

    def restoring(self, transaction: Transaction) -> Iterator[int]:
        """Restore the publishes and settlements in steps after their commit failed: the branch is as before."""
        self.settlements = transaction.settlements
        for message, queues, _, delay in transaction.publishes:
            self.publish(message, queues, delay)
            yield 1
        self.deciding = False
        self.start_timer()

    def lose_workers(self, reason: str) -> None:
        for worker in list(self.workers):
            worker.rolled_back(self, reason)

    def set_timeout(self, seconds: int) -> None:
        """Set the timeout that a client asks for; 0 means none."""
        self.asked_timeout = seconds
        self.timeout = seconds * 1000
        self.start_timer()

    def start_timer(self) -> None:
        timers = self.branches.broker.timers
        if self.timeout and self.state in (ACTIVE, ENDED, ROLLBACK_ONLY):
            timers.at(timers.now() + self.timeout, self.timer)
        else:
            timers.cancel(self.timer)

    # The log

    def write(self) -> None:
        """Write the record of a decided branch to the log."""
        self._put({"user": self.user, "state": self.state, "since": self.since})

    def _put(self, value: Record) -> None:
        self.recorded = True
        self.branches.broker.log.put(metadata.BRANCH, self._key(), metadata.pack(value))

    def _key(self) -> str:
        return metadata.make_key(self.branches.vhost.name, self.name)

    def preparing(self) -> Iterator[int]:
        """Write the content and the record of a prepared branch to the log, in steps; nothing if that fails."""
        failure: Exception | None = None
        try:
            targets: list[Target] = []
            for message, queues, delay in self.publishes:
                if delay is None:
                    self._store(message, queues, None, targets)
                else:
                    delayed, at_once = delay.split(queues)
                    self._store(message, at_once, None, targets)
                    self._store(message, delayed, delay, targets)
                yield 2
            places: list[Place] = []
            yield from self._finding_places(places)
            encode = msgspec.msgpack.encode
            self._put(
                {
                    "user": self.user,
                    "state": PREPARED,
                    "since": self.since,
                    "store": 0 if self.store is None else self.store.id,
                    "publishes": msgspec.Raw(encode(targets)),
                    "settlements": msgspec.Raw(encode(places)),
                }
            )
        except Exception as error:
            failure = error
        if failure is not None:
            yield from self.forgetting_stored()
            raise failure

    def _store(self, message: Message, queues: list[Queue], delay: Delay | None, targets: list[Target]) -> None:
        """Write a publish to the log, with the delay of its queues, and add these to `targets` if one of them is stored."""
        if not is_kept(message, queues):
            return
        vhost = self.branches.vhost
        if self.store is None:
            self.store = make_store(vhost, self.name, vhost.broker.new_queue_id())
        entry = Entry(self.store, message, len(self.stored) + 1)
        if delay is not None:
            entry.overlay = delay.overlay(message)
        vhost.broker.log.store(entry)
        self.stored.append(entry)
        ids = [queue.id for queue in queues if queue.stored]
        # Pairs of a number of consecutive publishes and their queues.
        if targets and targets[-1][1] == ids:
            targets[-1] = (targets[-1][0] + 1, ids)
        else:
            targets.append((1, ids))

    def _finding_places(self, places: list[Place]) -> Iterator[int]:
        """Find the durable settled entries, in steps: queue, outcome, and runs of sequence numbers as start and count."""
        seqs: dict[tuple[int, int], list[int]] = {}
        for entry, outcome in self.settlements:
            row = entry.row
            # Settlements in a stream have no effect on its entries.
            if row is not None and row.log is entry.queue.log and not entry.queue.replayable:
                seqs.setdefault((entry.queue.id, outcome), []).append(entry.seq)
            yield 1
        for (queue_id, outcome), found in seqs.items():
            found.sort()
            yield len(found) >> SORT_SHIFT
            runs: list[int] = []
            for seq in found:
                if runs and seq == runs[-2] + runs[-1]:
                    runs[-1] += 1
                else:
                    runs.extend((seq, 1))
                yield 1
            places.append((queue_id, outcome, runs))

    def forget_stored(self) -> None:
        """Remove the stored publishes, which are in their queues, or dropped."""
        for _ in self.forgetting_stored():
            pass

    def forgetting_stored(self) -> Iterator[int]:
        """Remove the stored publishes in steps."""
        stored = self.stored
        while stored:
            entry = stored.pop()
            row = entry.row
            if row is not None:
                row.log.settle(entry)
            yield 1
        if self.store is not None:
            self.store.log.forget(self.store.id)
            self.store = None

    def erase(self) -> None:
        """Delete the record in the current log commit."""
        self.branches.broker.timers.cancel(self.timer)
        if self.recorded:
            self.branches.broker.log.put(metadata.BRANCH, self._key(), None)
            self.recorded = False

    # Recovery

    def recover(self, state: str, since: int, taken: Taken | None, queues: dict[int, Queue]) -> None:
        self.state = state
        self.since = since
        self.recorded = True
        self.timeout = 0
        if taken is not None:
            self.store = None if not taken.store else make_store(self.branches.vhost, self.name, taken.store)
            self.taken = taken
            self.queues = queues
            for queue_id, _, places in taken.settlements:
                queue = queues.get(queue_id)
                if queue is not None and places.seqs:
                    queue.consumers.freeze()  # its order may depend on acquired entries
                    for seq, size in zip(places.seqs, places.sizes, strict=True):
                        queue.hidden.add(seq, size)  # counted until it is read, for purges

    def load(self) -> None:
        """Read the content back; after that it can be decided."""
        taken = self.taken
        if taken is None:
            return
        self.taken = None
        log = self.branches.broker.log
        wanted: list[tuple[RecoveredQueue, Callable[[list[Loaded]], None]]] = [
            (places, partial(self._settlements_loaded, queue_id, outcome))
            for queue_id, outcome, places in taken.settlements
            if places.seqs
        ]
        if taken.publishes.seqs:
            wanted.append((taken.publishes, partial(self._publishes_loaded, taken.targets)))
        self.busy += len(wanted)
        for places, done in wanted:
            log.load(places.rows, places.slots, done)

    def _settlements_loaded(self, queue_id: int, outcome: int, loaded: list[Loaded]) -> None:
        queue = self.queues.get(queue_id) or make_store(self.branches.vhost, "", queue_id)
        for item in loaded:
            entry = make_entry(queue, item, 0, 0)
            if queue.deleted or queue_id not in self.queues:
                item.row.log.settle(entry)
                continue
            queue.hidden.discard(item.seq)
            queue.restore(entry)
            self.settlements.append((entry, outcome))
        if queue_id in self.queues:
            thaw(queue)
        self._read()

    def _publishes_loaded(self, targets: list[Target], loaded: list[Loaded]) -> None:
        store = self.store
        assert store is not None
        at = 0
        for count, ids in targets:
            queues = [queue for queue in (self.queues.get(number) for number in ids) if queue is not None]
            for item in loaded[at : at + count]:
                self.stored.append(make_entry(store, item, 0, 0))
                self.publish(item.message, queues, None if item.overlay is None else recovered_delay(item.overlay, queues))
            at += count
        self._read()

    def _read(self) -> None:
        if self.busy == 1:
            self.queues = {}
        self._idle()
        self.branches.broker.end_turn()

    # Decisions

    def working(self, pieces: Iterator[int]) -> Iterator[int]:
        """Run work in the branch in steps; decisions wait for its end."""
        self.busy += 1
        return self._working(pieces)

    def _working(self, pieces: Iterator[int]) -> Iterator[int]:
        try:
            yield from logged(pieces)
        finally:
            self._idle()

    def _idle(self) -> None:
        self.busy -= 1
        then = self.then
        if not self.busy and then is not None:
            self.then = None
            then()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Carry out a decision once everything is in memory and no work is in progress."""
        self.deciding = True
        self.branches.broker.timers.cancel(self.timer)
        if self.busy:
            self.then = then
        else:
            then()


class _TimeOut(Timed):
    """Timer that rolls back an unprepared branch."""

    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch

    def fire(self, now: int) -> None:
        self.branch.branches.time_out(self.branch)


def make_store(vhost: Vhost, name: str, number: int) -> Queue:
    """Return the hidden queue under whose number the log keeps the publishes of a branch."""
    store = ClassicQueue(QueueDefinition(vhost, number, name, True))
    store.stored = True
    return store


def is_kept(message: Message, queues: list[Queue]) -> bool:
    return message.persistent and any(queue.stored for queue in queues)


def _requeuing(settlements: list[tuple[Entry, int]], frozen: FrozenQueues) -> Iterator[int]:
    """Requeue entries, the last one first, so that they keep their order."""
    while settlements:
        entry = settlements.pop()[0]
        frozen.freeze(entry.queue)
        entry.queue.requeue(entry)
        yield 2


def format_identifier(name: str) -> str:
    """Return a transaction identifier as printable text: unchanged, or in hexadecimal digits after `hex:`."""
    if name.isascii() and name.isprintable() and not name.startswith("hex:"):
        return name
    return "hex:" + name.encode("utf-8", "surrogateescape").hex()


def parse_identifier(text: str) -> str:
    """Return the transaction identifier for the output of `format_identifier`. Raises ValueError for invalid digits."""
    if not text.startswith("hex:"):
        return text
    return bytes.fromhex(text.removeprefix("hex:")).decode("utf-8", "surrogateescape")

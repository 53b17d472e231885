"""Transactions: publishes and settlements that take effect together, as one record in the log.

The protocols (`tx` and `dtx` of 0-9, `tx` of 0-9-1, the coordinator of 1.0) collect them. Settlements and prepared entries
are written in one log commit; the entries become visible after it. A small transaction is written in one turn. A large one
is written in steps, during which the log keeps its commit open, and becomes visible in steps, during which its queues are
frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from leveret.broker import settlement
from leveret.broker.delay import Delay
from leveret.broker.jobs import Jobs, logged
from leveret.broker.log import CommitWaiter, Log
from leveret.broker.message import ARCHIVED, Entry, Message, Overlay
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.queues.queue import Queue

ACCEPT: Final = 0
REQUEUE: Final = 1
REJECT: Final = 2

# Number of publishes and settlements above which a transaction is written, and becomes visible, in steps.
LARGE: Final = 2000
# Number of entries that become visible between two checks of the budget.
SLICE: Final = 512


class Transaction(CommitWaiter):
    """One transaction that is being committed.

    publish   adds a message for the queues that it was routed to; visible at `due` (0: with the commit), and after the
              delay by exchanges on its way
    settle    adds an acquired entry, with one of ACCEPT, REQUEUE, REJECT
    forced    whether full queues accept it, too, because it was prepared
    durable   whether a part of it is written to the log

    Dead letters of rejected entries are prepared like publishes. Requeues, and rejected entries that stay in their queue
    for a retry, come last, when nothing else can fail.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.publishes: list[tuple[Message, list[Queue], int, Delay | None]] = []
        self.settlements: list[tuple[Entry, int]] = []
        self.prepared: list[Entry] = []
        self.frozen = FrozenQueues()
        # Number of written settlements, and the requeues among them, which are still pending. While one is written: what
        # its queue counted before.
        self.settled = 0
        self.returned: list[Entry] = []
        # Outcomes other than those of `settle`, and failed delivery attempts of removed entries.
        self.applied: dict[Entry, Callable[[Entry], None]] = {}
        self.attempts: dict[Entry, int] = {}
        self.settling = False
        self.acquired: tuple[int, ...] = ()
        self.stepwise = False
        self.forced = False
        self.durable = False
        self.done: Callable[[], None] | None = None
        self.failed: Callable[[], None] | None = None

    def publish(self, message: Message, queues: list[Queue], due: int = 0, delay: Delay | None = None) -> None:
        self.publishes.append((message, queues, due, delay))

    def settle(self, entry: Entry, outcome: int) -> None:
        self.settlements.append((entry, outcome))

    def commit(self, done: Callable[[], None], durable: bool = False) -> None:
        """Write it; `done` is called once it is on disk and visible (at once if nothing is durable).

        `durable` means that the caller has written something else that belongs to it.
        """
        self.durable = durable
        try:
            for _ in self.writing():
                pass
        except Exception:
            for _ in self.undoing():
                pass
            self.requeue_all()
            raise
        for _ in self.returning():
            pass
        self.finish(done, None)

    # In steps: `begin`, `writing` and `write_settlement` as often as necessary, `returning` on success, `end`, and
    # then `finish`

    def begin(self, jobs: Jobs) -> None:
        """Begin one log commit. For work run by `jobs.commits`."""
        self.stepwise = True
        self.log.begin_batch(jobs.commits.complete)

    def writing(self) -> Iterator[int]:
        """Write it in steps."""
        for message, queues, due, delay in self.publishes:
            self._write(message, queues, due, delay)
            yield 1 + len(queues)
        while self.settled < len(self.settlements):
            self._write_settlement()
            yield 1

    def undoing(self) -> Iterator[int]:
        """Undo what was written, in steps and in the same log commit, after a failure.

        Afterwards, `settlements` has the entries, which are acquired as before, for the caller to requeue or to keep.
        """
        self.returned = []
        prepared = self.prepared
        while prepared:
            yield from logged(_retracting(prepared))
        settlements = self.settlements
        left = settlements[self.settled :]
        del settlements[self.settled :]
        if self.settling:
            self.settling = False
            entry = left[0][0]
            settlement.undo(entry)
            entry.queue.counters.restore_acquired(self.acquired)
            entry.queue.note_reacquired(entry)
            settlement.restore_counts(entry, entry.acquired_count, self.attempts.get(entry, entry.delivery_count))
        while settlements:
            yield from logged(self._restoring(settlements, left))
        self.settled = 0
        self.settlements = left

    def _restoring(self, settlements: list[tuple[Entry, int]], left: list[tuple[Entry, int]]) -> Iterator[int]:
        """Acquire the entries again that were settled, and have the log keep them."""
        while settlements:
            entry, outcome = settlements.pop()
            left.append((entry, outcome))
            if entry.state == ARCHIVED:
                _restore_settled(entry, outcome)
                settlement.restore_counts(entry, entry.acquired_count, self.attempts.get(entry, entry.delivery_count))
            yield 2

    def returning(self) -> Iterator[int]:
        """Requeue the entries that are to be requeued, in steps, youngest first."""
        returned = self.returned
        while returned:
            yield from logged(self._returning(returned))

    def _returning(self, returned: list[Entry]) -> Iterator[int]:
        while returned:
            entry = returned.pop()
            if self.stepwise:
                self.frozen.freeze(entry.queue)
            apply = self.applied.get(entry)
            if apply is not None:
                apply(entry)
            else:
                entry.queue.requeue(entry)
            yield 2

    def requeuing(self) -> Iterator[int]:
        """Requeue the entries that are left after a failure, in steps."""
        settlements = self.settlements
        frozen = FrozenQueues()
        try:
            while settlements:
                yield from logged(_requeuing(settlements, frozen))
        finally:
            frozen.thaw()

    def requeue_all(self) -> None:
        for _ in self.requeuing():
            pass

    def end(self) -> None:
        """End the log commit after everything was written, or undone."""
        self.frozen.thaw()
        self.log.end_batch()

    def finish(self, done: Callable[[], None], failed: Callable[[], None] | None) -> None:
        """Call `done` once the written changes are on disk and visible, or `failed` after an internal error."""
        self.done = done
        self.failed = failed
        if self.durable:
            self.log.wait(self)
        else:
            self.committed(0)

    def _write(self, message: Message, queues: list[Queue], due: int, delay: Delay | None) -> None:
        if queues and queues[len(queues) - 1].observes and any(queue.drops_all(message) for queue in queues):
            self.durable = self.durable or message.row is not None
            return
        for queue in queues:
            later = due if delay is None else delay.due_in(queue, due)
            if queue.deleted or (not self.forced and queue.limits.reject_publish(message, later)):
                continue
            overlay: Overlay | None = None
            if delay is not None:
                overlay = delay.overlay_in(queue, message, due)
            elif due:
                overlay = Overlay()
                overlay.visible_at = due
            entry = queue.prepare_publish(message, overlay)
            if entry is None:
                self.durable = self.durable or message.row is not None  # it waits for the commit of the first one
                continue
            queue.hidden.add(entry.seq, message.size)
            self.prepared.append(entry)
            self.durable = self.durable or entry.row is not None

    def write_settlement(self, entry: Entry, outcome: int, apply: Callable[[Entry], None] | None = None) -> None:
        """Add and write a settlement. All earlier ones are written. `apply` replaces the usual reject or requeue."""
        self.settlements.append((entry, outcome))
        if apply is not None:
            self.applied[entry] = apply
        self._write_settlement()

    def _write_settlement(self) -> None:
        entry, outcome = self.settlements[self.settled]
        queue = entry.queue
        self.durable = self.durable or entry.row is not None
        self.acquired = queue.counters.acquired()
        self.settling = True
        if outcome == ACCEPT:
            queue.settle(entry)
        elif outcome == REJECT and queue.retries(entry):
            self.applied[entry] = queue.reject
            self.returned.append(entry)
        elif outcome == REJECT or (entry not in self.applied and queue.limits.exceeds_deliveries(entry)):
            self._remove(entry, outcome)
        else:
            self.returned.append(entry)
        self.settling = False
        self.settled += 1

    def _remove(self, entry: Entry, outcome: int) -> None:
        """Reject an entry, or requeue one whose deliveries have failed too often.

        Its dead letters become visible with the transaction.
        """
        queue = entry.queue
        dead_letters = queue.vhost.dead_letters
        written = len(self.prepared)
        self.attempts[entry] = entry.delivery_count
        dead_letters.prepared = self.prepared
        try:
            apply = self.applied.get(entry)
            if apply is not None:
                apply(entry)
            elif outcome == REJECT:
                queue.reject(entry)
            else:
                queue.requeue(entry)
        finally:
            dead_letters.prepared = None
        for dead_letter in self.prepared[written:]:
            self.durable = self.durable or dead_letter.row is not None

    def committed(self, batch: int) -> None:
        prepared = self.prepared
        if len(prepared) > LARGE or len(self.settlements) > LARGE:
            entry = prepared[0] if prepared else self.settlements[0][0]
            jobs = entry.queue.broker.jobs
            if not jobs.run_steps(self._showing(), self._shown, self.failed):
                return
        else:
            for entry in prepared:
                entry.queue.hidden.discard(entry.seq)
                entry.queue.insert_new(entry)
        self._shown()

    def _showing(self) -> Iterator[int]:
        """Make the entries visible, all at once for consumers: no queue delivers before the last is visible."""
        prepared = self.prepared
        frozen = FrozenQueues()
        try:
            for at in range(0, len(prepared), SLICE):
                by_queue: dict[Queue, list[Entry]] = {}
                for entry in prepared[at : at + SLICE]:
                    by_queue.setdefault(entry.queue, []).append(entry)
                for queue, entries in by_queue.items():
                    frozen.freeze(queue)
                    for entry in entries:
                        queue.hidden.discard(entry.seq)
                    queue.insert_many(entries)
                yield SLICE
        finally:
            frozen.thaw()
        while self.publishes:
            self.publishes.pop()
            yield 1
        while self.settlements:
            self.settlements.pop()
            yield 1

    def _shown(self) -> None:
        self.prepared = []
        done = self.done
        if done is not None:
            self.done = None
            done()


def _restore_settled(entry: Entry, outcome: int) -> None:
    """Undo the settlement of an entry: it is acquired again and stored in the log."""
    queue = entry.queue
    row = entry.row
    if row is not None:
        entry.row = None
        if not queue.deleted:
            row.log.store(entry)
    settlement.undo(entry)
    queue.count_undone(entry, outcome == ACCEPT)
    queue.note_reacquired(entry)


def _retracting(prepared: list[Entry]) -> Iterator[int]:
    while prepared:
        entry = prepared.pop()
        entry.queue.hidden.discard(entry.seq)
        entry.queue.retract(entry)
        yield 1


def _requeuing(settlements: list[tuple[Entry, int]], frozen: FrozenQueues) -> Iterator[int]:
    while settlements:
        entry = settlements.pop()[0]
        frozen.freeze(entry.queue)
        entry.queue.requeue(entry)
        yield 2

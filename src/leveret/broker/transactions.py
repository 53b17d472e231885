"""Transactions: publishes and settlements that take effect together, as one record in the log.

The protocols (`tx` and `dtx` of 0-9, `tx` of 0-9-1, the coordinator of 1.0) collect them. Settlements and prepared entries
are written in one log commit; the entries become visible after it. A small transaction is written in one turn. A large one
is written in steps, during which the log keeps its commit open, and becomes visible in steps, during which its queues are
frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from leveret.broker.jobs import Jobs
from leveret.broker.log import CommitWaiter, Log
from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.queues import limits
from leveret.broker.queues.base import Queue, freeze, thaw

ACCEPT: Final = 0
REQUEUE: Final = 1
REJECT: Final = 2

# Publishes and settlements beyond which a transaction is written, and becomes visible, in steps.
LARGE: Final = 2000
# Entries that become visible between two looks at the budget.
SLICE: Final = 512


class Transaction(CommitWaiter):
    """One transaction that is being committed.

    publish   a message to the queues it was routed to, where it becomes visible at `due` (0: with the commit)
    settle    an acquired entry, with one of ACCEPT, REQUEUE, REJECT
    forced    full queues take it, too: that was promised
    durable   something of it is on its way to the disk
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.publishes: list[tuple[Message, list[Queue], int]] = []
        self.settlements: list[tuple[Entry, int]] = []
        self.prepared: list[Entry] = []
        self.frozen: dict[Queue, None] = {}
        self.forced = False
        self.durable = False
        self.done: Callable[[], None] | None = None
        self.failed: Callable[[], None] | None = None

    def publish(self, message: Message, queues: list[Queue], due: int = 0) -> None:
        self.publishes.append((message, queues, due))

    def settle(self, entry: Entry, outcome: int) -> None:
        self.settlements.append((entry, outcome))

    def commit(self, done: Callable[[], None], durable: bool = False) -> None:
        """Write it all; `done` is called once it is on disk and visible (at once where nothing is durable). With `durable`
        the caller has written something else that belongs to it."""
        self.durable = durable
        for message, queues, due in self.publishes:
            self._write(message, queues, due)
        for entry, outcome in self.settlements:
            self.write_settlement(entry, outcome)
        self.finish(done, None)

    # In steps: `begin`, `writing` and `write_settlement` as often as it takes, `end`, and `finish` if all went well

    def begin(self, jobs: Jobs) -> None:
        """What is written from now on is one commit. For work that `jobs.commits` carries out."""
        self.log.begin_batch(jobs.commits.complete)

    def writing(self) -> Iterator[int]:
        """Write it in steps."""
        publishes = self.publishes
        publishes.reverse()
        while publishes:
            message, queues, due = publishes.pop()
            self._write(message, queues, due)
            yield 1 + len(queues)
        settlements = self.settlements
        settlements.reverse()
        while settlements:
            entry, outcome = settlements.pop()
            if outcome == REQUEUE:
                freeze(entry.queue, self.frozen)
            self.write_settlement(entry, outcome)
            yield 1

    def end(self) -> None:
        """Everything is written, or some of it has failed."""
        frozen = self.frozen
        self.frozen = {}
        thaw(frozen)
        self.log.end_batch()

    def finish(self, done: Callable[[], None], failed: Callable[[], None] | None) -> None:
        """Call `done` once what was written is on disk and visible, or `failed` if a mistake keeps it from that."""
        self.done = done
        self.failed = failed
        if self.durable:
            self.log.wait(self)
        else:
            self.committed(0)

    def _write(self, message: Message, queues: list[Queue], due: int) -> None:
        for queue in queues:
            if queue.deleted or (not self.forced and limits.turns_away(queue, message)):
                continue
            overlay: Overlay | None = None
            if due:
                overlay = Overlay()
                overlay.visible_at = due
            entry = queue.prepare(message, overlay)
            queue.hidden.add(entry.seq, message.size)
            self.prepared.append(entry)
            self.durable = self.durable or entry.row is not None

    def write_settlement(self, entry: Entry, outcome: int) -> None:
        self.durable = self.durable or entry.row is not None
        if outcome == ACCEPT:
            entry.queue.settle(entry)
        elif outcome == REJECT:
            entry.queue.reject(entry)
        else:
            entry.queue.requeue(entry)

    def committed(self, batch: int) -> None:
        prepared = self.prepared
        if len(prepared) > LARGE:
            jobs = prepared[0].queue.broker.jobs
            if not jobs.run_steps(self._showing(), self._shown, self.failed):
                return
        else:
            for entry in prepared:
                entry.queue.hidden.discard(entry.seq)
                entry.queue.insert_new(entry)
        self._shown()

    def _showing(self) -> Iterator[int]:
        """Make the entries visible, all at once for consumers: no queue hands out anything before the last entry is
        there."""
        prepared = self.prepared
        frozen: dict[Queue, None] = {}
        try:
            for at in range(0, len(prepared), SLICE):
                by_queue: dict[Queue, list[Entry]] = {}
                for entry in prepared[at : at + SLICE]:
                    by_queue.setdefault(entry.queue, []).append(entry)
                for queue, entries in by_queue.items():
                    freeze(queue, frozen)
                    for entry in entries:
                        queue.hidden.discard(entry.seq)
                    queue.insert_many(entries)
                yield SLICE
        finally:
            thaw(frozen)

    def _shown(self) -> None:
        self.prepared = []
        done = self.done
        if done is not None:
            self.done = None
            done()

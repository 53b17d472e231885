"""Transactions: publishes and settlements that take effect together, as one record of the log.

The front-ends (`tx` of 0-9 and 0-9-1, later dtx and the 1.0 coordinator) collect them and call `commit`. Settlements are
written at once with the prepared entries of the publishes, all within one turn, so that they share one commit; the
entries become visible after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.log import CommitWaiter, Log
from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.queues import limits
from leveret.broker.queues.base import Queue

ACCEPT: Final = 0
REQUEUE: Final = 1
REJECT: Final = 2


class Transaction(CommitWaiter):
    """One transaction that is being committed.

    publish   a message to the queues it was routed to, where it becomes visible at `due` (0: with the commit)
    settle    an acquired entry, with one of ACCEPT, REQUEUE, REJECT
    forced    full queues take it, too: that was promised
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.publishes: list[tuple[Message, list[Queue], int]] = []
        self.settlements: list[tuple[Entry, int]] = []
        self.prepared: list[Entry] = []
        self.forced = False
        self.done: Callable[[], None] | None = None

    def publish(self, message: Message, queues: list[Queue], due: int = 0) -> None:
        self.publishes.append((message, queues, due))

    def settle(self, entry: Entry, outcome: int) -> None:
        self.settlements.append((entry, outcome))

    def commit(self, done: Callable[[], None], durable: bool = False) -> None:
        """Write it all; `done` is called once it is on disk and visible (at once where nothing is durable). With `durable`
        the caller has written something else that belongs to it."""
        self.done = done
        for message, queues, due in self.publishes:
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
                durable = durable or entry.row is not None
        for entry, outcome in self.settlements:
            durable = durable or entry.row is not None
            if outcome == ACCEPT:
                entry.queue.settle(entry)
            elif outcome == REJECT:
                entry.queue.reject(entry)
            else:
                entry.queue.requeue(entry)
        if durable:
            self.log.wait(self)
        else:
            self.committed(0)

    def committed(self, batch: int) -> None:
        for entry in self.prepared:
            entry.queue.hidden.discard(entry.seq)
            entry.queue.insert_new(entry)
        self.prepared = []
        done = self.done
        if done is not None:
            self.done = None
            done()

"""Queues that clients cannot see: messages are published to them, but nothing is delivered from them."""

from __future__ import annotations

from leveret.broker import settlement
from leveret.broker.consumer import Consumer
from leveret.broker.errors import NotImplementedByBroker
from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.rings import Rings


class HiddenQueue(Queue):
    """A queue without consumers, which its owner empties. No entry is ever acquired."""

    @property
    def ready_count(self) -> int:
        return 0

    @property
    def ready_bytes(self) -> int:
        return 0

    @property
    def consumers(self) -> Rings:
        return Rings(self.broker, False)

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        return entry

    def can_deliver_now(self, message: Message) -> bool:
        return True

    def drain(self) -> None:
        """Do nothing: there are no consumers."""

    def settle(self, entry: Entry) -> None:
        settlement.settle(entry)

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        settlement.settle(entry)

    def reject(self, entry: Entry, reason: str = "") -> None:
        settlement.settle(entry)

    def add_consumer(self, consumer: Consumer) -> None:
        raise NotImplementedByBroker(f"{self} has no consumers")

    def remove_consumer(self, consumer: Consumer) -> None:
        """Do nothing: there are no consumers."""

    def unpark(self, consumer: Consumer) -> None:
        """Do nothing: there are no consumers."""

    def delete(self, keep_pending: bool = False) -> int:
        self.deleted = True
        return 0

"""Live tails: the messages that arrive in a queue, or that are published to an exchange, for operators who watch them.

A tail keeps references to messages until its reader takes them. Messages beyond its limits are counted and not kept, so
that a slow reader costs little. A queue or an exchange has a watch for its tails only while it has some; others do no work.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from leveret.broker.watches import set_tails, tails_of

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.message import Entry, Message
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

# Messages that wait for the reader of a tail, and their bytes. A larger message is kept if it is the only one.
MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 8 << 20


class Arrival:
    """A message that has arrived.

    entry  its place in a queue, None for a publish
    time   milliseconds of Unix time
    """

    __slots__ = ("entry", "message", "time")

    def __init__(self, message: Message, entry: Entry | None) -> None:
        self.message = message
        self.entry = entry
        self.time = time.time_ns() // 1_000_000


class Tail:
    """The messages of a queue or an exchange that its reader has not taken yet."""

    def __init__(self) -> None:
        self._waiting: list[Arrival] = []
        self._bytes = 0
        self._dropped = 0

    def add(self, message: Message, entry: Entry | None) -> None:
        """Keep a message, or count it."""
        size = self._bytes + message.size + len(message.header)
        if self._waiting and (size > MAX_WAITING_BYTES or len(self._waiting) >= MAX_WAITING):
            self._dropped += 1
            return
        self._waiting.append(Arrival(message, entry))
        self._bytes = size

    def take(self) -> tuple[list[Arrival], int]:
        """Remove and return the messages, and the number of those that were not kept."""
        waiting, dropped = self._waiting, self._dropped
        self._waiting, self._bytes, self._dropped = [], 0, 0
        return waiting, dropped

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether the queue or exchange was deleted."""

    @abstractmethod
    def close(self) -> None:
        """Stop to watch."""


class QueueTail(Tail):
    """The tail of a queue."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.queue = queue
        set_tails(queue, [*tails_of(queue), self])

    def has_ended(self) -> bool:
        return self.queue.deleted

    def close(self) -> None:
        set_tails(self.queue, [tail for tail in tails_of(self.queue) if tail is not self])


class ExchangeTail(Tail):
    """The tail of an exchange."""

    def __init__(self, vhost: Vhost, exchange: Exchange) -> None:
        super().__init__()
        self.vhost = vhost
        self.exchange = exchange
        vhost.set_tails(exchange.name, [*vhost.tails.get(exchange.name, []), self])

    def has_ended(self) -> bool:
        return self.vhost.removed or self.exchange.deleted

    def close(self) -> None:
        tails = self.vhost.tails.get(self.exchange.name, [])
        self.vhost.set_tails(self.exchange.name, [tail for tail in tails if tail is not self])

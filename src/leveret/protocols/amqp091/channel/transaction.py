"""The transaction of a channel: publishes and acknowledgements that take effect together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret.broker.consumer import UNACKED_PIECE
from leveret.broker.errors import ContentTooLarge
from leveret.broker.message import Entry, Message
from leveret.broker.routing import Route
from leveret.protocols.amqp091.channel.unacked import UnackedDeliveries

# A delivery tag, its entry, and the outcome.
Settlement = tuple[int, Entry, int]


class PendingPublish:
    """A publish in an open transaction.

    Its route is resolved on arrival. Only routes that depend on the message are resolved again at commit.
    """

    __slots__ = ("flags", "message", "route", "sent_at")

    def __init__(self, message: Message, route: Route, flags: int, sent_at: int) -> None:
        self.message = message
        self.route = route
        self.flags = flags
        self.sent_at = sent_at


class ChannelTransaction:
    """The open transaction of a channel.

    A settled entry counts in the windows of the channel until the end of the transaction.

    Attributes:
        publishes: publishes, in order.
        settlements: acknowledgements, in order.
        size: bytes of the publishes.
        rolled_back: publishes of all transactions of the channel that were rolled back.
        since: time of the first publish or settlement.
        committing: whether a large transaction is being committed. Its settlements take effect even if the channel closes.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self.publishes: list[PendingPublish] = []
        self.settlements: list[Settlement] = []
        self.size = 0
        self.rolled_back = 0
        self.since = 0
        self.committing = False

    def __len__(self) -> int:
        return len(self.publishes) + len(self.settlements)

    def grow(self, size: int) -> None:
        """Add `size` bytes to the size of the transaction.

        Raises:
            ContentTooLarge: the transaction exceeds `limits.transaction_size`.
        """
        self.size += size
        if self.size > self._max_size:
            raise ContentTooLarge(
                f"the transaction exceeds {self._max_size} bytes; the limit is set by limits.transaction_size"
            )

    def begin(self, now: int) -> None:
        """Note the time before each publish or settlement; that of the first one counts."""
        if not self.publishes and not self.settlements:
            self.since = now

    def publish(self, message: Message, route: Route, flags: int, sent_at: int) -> None:
        self.begin(sent_at)
        self.publishes.append(PendingPublish(message, route, flags, sent_at))

    def settle(self, taken: list[tuple[int, Entry]], outcome: int) -> None:
        settlements = self.settlements
        for tag, entry in taken:
            settlements.append((tag, entry, outcome))

    def entries(self) -> list[Entry]:
        """Return the entries of the settlements."""
        return [entry for _, entry, _ in self.settlements]

    def pieces(self) -> Iterator[list[Entry]]:
        """Yield the same entries in pieces, between which the transaction may grow or end."""
        settlements = self.settlements
        for at in range(0, len(settlements), UNACKED_PIECE):
            yield [entry for _, entry, _ in settlements[at : at + UNACKED_PIECE]]

    def take(self) -> tuple[list[PendingPublish], list[Settlement]]:
        """Return the publishes and the settlements, and start a new transaction."""
        taken = (self.publishes, self.settlements)
        self.publishes = []
        self.settlements = []
        self.size = 0
        return taken

    def begin_commit(self) -> list[PendingPublish]:
        """Begin a commit in steps, and return the publishes. The settlements stay until each one is written."""
        self.committing = True
        publishes = self.publishes
        self.publishes = []
        self.size = 0
        return publishes

    def begin_settling(self) -> None:
        """Prepare the settlements for `next_settlement`."""
        self.settlements.reverse()

    def next_settlement(self) -> Settlement | None:
        """Remove and return the oldest settlement of a commit in steps."""
        return self.settlements.pop() if self.settlements else None

    def end_commit(self) -> None:
        """End a commit in steps. After a failure, the remaining settlements belong to the next transaction."""
        self.committing = False

    def take_newest(self) -> Entry | None:
        """Remove the newest settlement, and return its entry; None if there is none or a commit will write it."""
        if self.committing or not self.settlements:
            return None
        return self.settlements.pop()[1]

    def rolling_back(self, unacked: UnackedDeliveries) -> Iterator[int]:
        """Roll back, in steps: the settled deliveries are unacknowledged again."""
        settlements = self.settlements
        settlements.reverse()
        while settlements:
            tag, entry, _ = settlements.pop()
            unacked.restore(tag, entry)
            yield 1
        yield from self.dropping_publishes()
        self.size = 0

    def dropping_publishes(self) -> Iterator[int]:
        """Drop the publishes, in steps."""
        publishes = self.publishes
        while publishes:
            publishes.pop()
            self.rolled_back += 1
            yield 1


# Stands for the transaction of channels that have begun none. It stays empty.
NO_TRANSACTION: Final = ChannelTransaction(0)

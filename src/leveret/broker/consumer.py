"""Consumer interface, and the output interface of connections.

Consumers pull: a queue asks each consumer whether it has credit for an entry. A consumer without credit is parked and
not asked again until it calls `wake` (new credit, a drained socket). Both classes are native base classes that the
protocols subclass, which keeps calls cheap when compiled.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from leveret.broker.log import CommitWaiter
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.message import Entry, Message
    from leveret.broker.queues.queue import Queue


# Entries of a piece of `UnackedOwner.unacked_pieces`.
UNACKED_PIECE: Final = 2000
# Numbers per entry up to which entries are looked up by all possible numbers.
_MAX_SPAN: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Output:
    """A connection with output to write at the end of the turn."""

    @abstractmethod
    def flush(self) -> None:
        """Write the pending output."""


class Client:
    """A client in trace messages: the name of its connection, the number of its channel, and its user."""

    __slots__ = ("channel", "connection", "user")

    def __init__(self, connection: str, channel: int, user: str) -> None:
        self.connection = connection
        self.channel = channel
        self.user = user


# Stands for the broker itself.
NO_CLIENT: Final = Client("", 0, "")


class Deliveries:
    """The unsettled deliveries of a channel or session, which it has numbered in their order.

    Attributes:
        connection: The number of the connection.
        channel: The number of the channel or session.
        entries: The entries by number. The dictionary changes with deliveries and settlements.
        first: The lowest number, or one below it.
        following: The number of the next delivery.
        mask: The bits of a number.
    """

    __slots__ = ("channel", "connection", "entries", "first", "following", "mask")

    def __init__(
        self, connection: int, channel: int, entries: dict[int, Entry], first: int, following: int, mask: int
    ) -> None:
        self.connection = connection
        self.channel = channel
        self.entries = entries
        self.first = first
        self.following = following
        self.mask = mask

    def numbers(self) -> Iterator[list[int]]:
        """Yield the numbers of the deliveries in pieces of up to `UNACKED_PIECE`, and some of settled ones.

        If few of all possible numbers have an entry, there is only one piece.
        """
        entries, mask = self.entries, self.mask
        span = (self.following - self.first) & mask
        if len(entries) <= UNACKED_PIECE or span > _MAX_SPAN * len(entries):
            yield list(entries)
            return
        for at in range(0, span, UNACKED_PIECE):
            yield [number & mask for number in range(self.first + at, self.first + min(at + UNACKED_PIECE, span))]

    def pieces(self) -> Iterator[list[Entry]]:
        """Yield the entries in pieces, between which there may be deliveries and settlements."""
        entries = self.entries
        for numbers in self.numbers():
            piece = []
            for number in numbers:
                entry = entries.get(number)
                if entry is not None:
                    piece.append(entry)
            yield piece


@mypyc_attr(allow_interpreted_subclasses=True)
class UnackedOwner(CommitWaiter):
    """An owner of acquired entries that also publishes: a channel, a session, the branches of a vhost."""

    def committed(self, batch: int) -> None:
        """Do nothing: of the owners, only sessions wait for commits themselves."""

    @abstractmethod
    def all_unacked(self) -> list[Entry]:
        """Return the delivered entries that are not settled."""

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        """Yield the same entries in pieces, between which entries may be delivered and settled.

        An entry may be in two pieces, and one that is returned meanwhile in none.
        """
        yield self.all_unacked()

    def deliveries(self) -> Deliveries | None:
        """Return the unsettled deliveries by number; None if the owner does not number them."""
        return None


class Scope:
    """Stand-in for a channel in the entries that it rejected, which may outlive the channel.

    Attributes:
        departed: Whether the channel is closed, so that the entries no longer have to avoid it.
    """

    __slots__ = ("departed",)

    def __init__(self) -> None:
        self.departed = False

    def depart(self) -> None:
        """Note that the channel is closed."""
        self.departed = True


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """One consumer of one queue.

    tag       its name in the protocol
    owner     the connection (for exclusive queues and no-local)
    channel   the channel or link
    scope     identifies it in entries that it rejected, which must not be delivered to it again in strict mode and over
              0-9: a `Scope` for a channel
    no_ack    whether deliveries count as settled
    unacked   delivered entries that are not settled; settlement counts them
    active    whether it may get deliveries: it is not a standby of a single active consumer, and not being cancelled
    left      whether it has left its queue, or is about to: it gets no more deliveries
    parked    whether it refused an entry and waits for `wake`
    selective  whether it accepts only some entries (no-local), so that the queue must look beyond its head
    apart     whether it is outside the dispatcher: a browser, or a lease reader
    seen      for a browser, which gets copies and acquires nothing: the sequence number up to which it has seen all
              entries, by priority level; None for other consumers

    The queue and the protocols change `active`, `left`, `parked`, `selective`, `apart` and `seen` only through the methods
    below.
    """

    __slots__ = (
        "active",
        "apart",
        "arguments",
        "channel",
        "exclusive",
        "left",
        "no_ack",
        "owner",
        "parked",
        "priority",
        "queue",
        "scope",
        "seen",
        "selective",
        "tag",
        "timeout",
        "unacked",
    )

    def __init__(
        self,
        queue: Queue,
        tag: str,
        owner: object,
        channel: object,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: FieldTable,
        scope: object | None = None,
    ) -> None:
        self.queue = queue
        self.tag = tag
        self.owner = owner
        self.channel = channel
        # Set here and not in the subclass: in compiled code, a constructor that sets an inherited attribute again leaks
        # the old value.
        self.scope: object = channel if scope is None else scope
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.arguments = arguments
        self.unacked = 0
        self.parked = False
        self.left = False
        self.active = True
        self.selective = False
        self.apart = False
        self.seen: dict[int, int] | None = None
        self.timeout = 0

    def queue_reconfigured(self) -> None:
        """Note that the consumer timeout of the queue has changed."""

    @abstractmethod
    def has_credit_for(self, size: int) -> bool:
        """Return whether there is credit for one more entry of `size` bytes."""

    def is_writable(self) -> bool:
        """Return whether its socket has taken all deliveries so far, so that the client is not the slower side."""
        return True

    def wants(self, message: Message, entry: Entry | None) -> bool:
        """Return whether a selective consumer accepts this message. `entry` is None if it is in no queue yet."""
        return True

    def wants_of(self, publisher: int) -> bool:
        """Return whether a selective consumer may accept messages of this publisher; used for paged-out messages."""
        return True

    def is_leaving(self) -> bool:
        """Return whether it was cancelled or its client disconnected.

        It then no longer excludes others from the queue, although removing all consumers of a connection takes a while.
        """
        return self.left

    def protocol(self) -> str:
        """Return the protocol of its connection, as named in events."""
        return ""

    def client(self) -> Client:
        """Return the client that it delivers to."""
        return NO_CLIENT

    @abstractmethod
    def deliver(self, entry: Entry) -> None:
        """Deliver an entry that the queue has acquired for this consumer.

        Raises:
            Undelivered: Its client cannot receive the entry, which the queue takes back.
        """

    def seen_all(self) -> None:
        """Note that a browser has delivered all existing entries for the first time."""

    def activated(self) -> None:
        """Note that it is the single active consumer now, since the previous one has left."""

    @abstractmethod
    def queue_deleted(self) -> None:
        """Handle the deletion of the queue, or the cancellation of the consumer by the broker."""

    def failed(self, text: str) -> None:
        """Handle an error that made the broker remove the consumer from the queue."""
        self.queue_deleted()

    def passed_over(self, text: str) -> None:
        """Note that the queue keeps an entry, which the client cannot receive, for other consumers."""

    def missed(self, text: str) -> None:
        """Leave, because the client cannot receive an entry that the queue delivers to no other consumer instead."""
        self.leave()

    def cancelled(self, text: str) -> None:
        """Handle the cancellation by an operator, who removed the consumer from the queue."""
        self.queue_deleted()

    # State

    def park(self) -> None:
        """Offer it nothing until `wake`: it has refused an entry."""
        self.parked = True

    def stand_by(self) -> None:
        """Wait to become the single active consumer."""
        self.active = False
        self.parked = True

    def activate(self) -> None:
        """Become the single active consumer. `activated` is called when the former one is removed."""
        self.active = True
        self.parked = False

    def deactivate(self) -> None:
        """Get no more deliveries: it is cancelled, or its client has disconnected."""
        self.active = False

    def leave(self) -> None:
        """Note that it has left its queue, or is about to."""
        self.left = True

    def select(self) -> None:
        """Accept only the entries that `wants` accepts."""
        self.selective = True

    def set_apart(self) -> None:
        """Exclude it from dispatching: the queue serves it in another way."""
        self.apart = True

    def browse(self, seen: dict[int, int]) -> None:
        """Get copies of the entries after `seen`, and acquire nothing."""
        self.seen = seen
        self.apart = True

    def wake(self) -> None:
        """Resume delivery with new credit."""
        if self.parked:
            self.parked = False
            if self.apart:
                self.queue.activate()
            else:
                self.queue.unpark(self)

"""Pending confirms: publishes that the server has not confirmed, by delivery tag."""

from __future__ import annotations

from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.errors import BatchFailed, Error, Nacked, Returned
from leveret.client.properties import Properties, decode_properties


class Publish(Outgoing):
    """An encoded `basic.publish`.

    Attributes:
        address: Exchange and routing key, encoded for the wire engine.
        header: Payload of the header frame.
        returned: The error of a `basic.return`, which precedes the confirm.
    """

    __slots__ = ("address", "header", "returned")

    def __init__(self, address: bytes, flags: int, header: bytes, body: bytes) -> None:
        # Do not call the base constructor, because the call is measurable per publish.
        self.address = address
        self.flags = flags
        self.header = header
        self.body = body
        self.waiter = None
        self.publisher = None
        self.at_most_once = False
        self.returned: Returned | BatchFailed | None = None

    def describe(self) -> tuple[str, str, Properties | None, bytes]:
        at = 1 + self.address[0]
        exchange = self.address[1:at].decode("utf-8", "surrogateescape")
        routing_key = self.address[at + 1 :].decode("utf-8", "surrogateescape")
        return exchange, routing_key, decode_properties(self.header), self.body

    def is_batch(self, id: str) -> bool:
        """Return whether it is the record batch with that id."""
        return False


class BatchPublish(Publish):
    """A record batch. `id` is its correlation id."""

    __slots__ = ("id",)

    def __init__(self, address: bytes, flags: int, header: bytes, body: bytes, id: str) -> None:
        super().__init__(address, flags, header, body)
        self.id = id

    def is_batch(self, id: str) -> bool:
        return self.id == id


class PendingConfirms:
    """The pending confirms of one channel.

    Delivery tags count the publishes from 1 (0-9-1 `confirm.select`, RabbitMQ).
    """

    __slots__ = ("_by_tag", "_first", "_next", "_returned")

    def __init__(self) -> None:
        self._by_tag: dict[int, Publish] = {}
        # All tags below this one are settled.
        self._first = 1
        self._next = 1
        # Tag of the last returned message. Messages are returned in order.
        self._returned = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    @property
    def last(self) -> int:
        """Tag of the last publish, or 0."""
        return self._next - 1

    def add(self, outgoing: Publish) -> None:
        """Add a publish under the next tag."""
        self._by_tag[self._next] = outgoing
        self._next += 1

    def confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """Settle the publishes that a `basic.ack` or `basic.nack` covers. A repeated confirm has no effect."""
        by_tag = self._by_tag
        if not multiple:
            outgoing = by_tag.get(tag)
            if outgoing is not None:
                # Settle before deleting, so that an interrupt in between loses no publish.
                outgoing.settle(_outcome(outgoing, ack))
                del by_tag[tag]
            if tag == self._first:
                self._first = tag + 1
            return
        stop = min(tag + 1, self._next) if tag else self._next
        first = self._first
        for number in range(first, stop):
            outgoing = by_tag.get(number)
            if outgoing is not None:
                outgoing.settle(_outcome(outgoing, ack))
                del by_tag[number]
        self._first = max(first, stop)

    def returned(self, address: bytes, header: bytes, body: bytes, error: Returned) -> bool:
        """Match a returned message with a publish, and return whether there is one.

        `basic.return` has no delivery tag, but precedes the confirm and follows the order of the publishes. Equal messages
        are interchangeable. The returned header may lack properties that are hidden from consumers (RabbitMQ's BCC).
        """
        for start in (max(self._first, self._returned + 1), self._first):
            for same_header in (True, False):
                for tag in range(start, self._next):
                    outgoing = self._by_tag.get(tag)
                    if (
                        outgoing is not None
                        and outgoing.flags
                        and outgoing.returned is None
                        and outgoing.address == address
                        and outgoing.body == body
                        and (not same_header or outgoing.header == header)
                    ):
                        outgoing.returned = error
                        self._returned = tag
                        return True
        return False

    def report(self, id: str, error: BatchFailed) -> None:
        """Note which rows of a record batch were not published, before its confirm."""
        for outgoing in self._by_tag.values():
            if outgoing.is_batch(id):
                outgoing.returned = error
                return

    def fail_at_most_once(self, error: Error) -> None:
        """Fail the publishes that must not be sent again after a lost connection."""
        for tag in [tag for tag, outgoing in self._by_tag.items() if outgoing.at_most_once]:
            self._by_tag.pop(tag).settle(error)

    def take(self) -> list[Publish]:
        """Return all pending publishes in order, and restart with tag 1."""
        waiting = list(self._by_tag.values())
        self._by_tag = {}
        self._first = self._next = 1
        self._returned = 0
        return waiting


def _outcome(outgoing: Publish, ack: bool) -> Error | None:
    if outgoing.returned is not None:
        return outgoing.returned
    if ack:
        return None
    return Nacked(
        "the server refused the message (basic.nack): a queue is full, or the message could not be stored",
        messages=[outgoing.describe()],
    )

"""Publishes that the server has not confirmed, in the order of their delivery tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.core.frontend import Waiter
from leveret.client.errors import Error, Nacked, Returned
from leveret.client.properties import Properties, decode_properties

if TYPE_CHECKING:
    from leveret.client.core.publisher import PublisherCore


class Outgoing:
    """A publish, encoded.

    address, flags, header, body   as the wire's engine takes them
    waiter       is told when it is confirmed; None where nobody waits
    publisher    counts it in its window
    once         it is not sent again after a lost connection
    returned     what it came back for, before its confirm
    """

    __slots__ = ("address", "at_most_once", "body", "flags", "header", "publisher", "returned", "waiter")

    def __init__(self, address: bytes, flags: int, header: bytes, body: bytes) -> None:
        self.address = address
        self.flags = flags
        self.header = header
        self.body = body
        self.waiter: Waiter | None = None
        self.publisher: PublisherCore | None = None
        self.at_most_once = False
        self.returned: Returned | None = None

    def settle(self, error: Error | None) -> None:
        """It is confirmed (None) or has failed."""
        waiter = self.waiter
        if waiter is not None:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        elif self.publisher is not None:
            publisher, self.publisher = self.publisher, None
            publisher.settled(self, error)

    def describe(self) -> tuple[str, str, Properties | None, bytes]:
        """Exchange, routing key, properties and body."""
        at = 1 + self.address[0]
        exchange = self.address[1:at].decode("utf-8", "surrogateescape")
        routing_key = self.address[at + 1 :].decode("utf-8", "surrogateescape")
        return exchange, routing_key, decode_properties(self.header), self.body


class PendingConfirms:
    """Those of one channel. Delivery tags count from 1 and grow by one with each publish (0-9-1 `confirm.select`,
    RabbitMQ)."""

    __slots__ = ("_by_tag", "_first", "_next", "_returned")

    def __init__(self) -> None:
        self._by_tag: dict[int, Outgoing] = {}
        # No tag before this one is there.
        self._first = 1
        self._next = 1
        # The one that came back last: they come back in order.
        self._returned = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    @property
    def last(self) -> int:
        """The tag of the one that was published last, 0 before the first."""
        return self._next - 1

    def add(self, outgoing: Outgoing) -> None:
        self._by_tag[self._next] = outgoing
        self._next += 1

    def confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """Settle what the server's `basic.ack` or `basic.nack` names; what it names twice is settled once."""
        by_tag = self._by_tag
        if not multiple:
            outgoing = by_tag.get(tag)
            if outgoing is not None:
                # In this order an interrupt forgets nobody.
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
        """A message came back: the first that could be it is to blame, and False is the result where there is none.

        `basic.return` names no delivery tag, but comes before the confirm, and in the order of the publishes; equal
        messages are as good as each other. Its header may lack what is not for consumers (RabbitMQ's BCC).
        """
        for start in (max(self._first, self._returned + 1), self._first):
            for same_header in (True, False):
                for tag in range(start, self._next):
                    outgoing = self._by_tag.get(tag)
                    if (outgoing is not None and outgoing.flags and outgoing.returned is None
                            and outgoing.address == address and outgoing.body == body
                            and (not same_header or outgoing.header == header)):
                        outgoing.returned = error
                        self._returned = tag
                        return True
        return False

    def fail_at_most_once(self, error: Error) -> None:
        """Settle those that are not to be published again, as the connection is lost."""
        for tag in [tag for tag, outgoing in self._by_tag.items() if outgoing.at_most_once]:
            self._by_tag.pop(tag).settle(error)

    def take(self) -> list[Outgoing]:
        """All that wait, in order, and begin anew with tag 1."""
        waiting = list(self._by_tag.values())
        self._by_tag = {}
        self._first = self._next = 1
        self._returned = 0
        return waiting


def _outcome(outgoing: Outgoing, ack: bool) -> Error | None:
    if outgoing.returned is not None:
        return outgoing.returned
    if ack:
        return None
    return Nacked("the server refused the message (basic.nack): a queue is full, or it could not be kept",
                  messages=[outgoing.describe()])

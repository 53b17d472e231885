"""A message, and its place in a queue.

A `Message` is the body and properties as received, shared by every queue that holds it. An `Entry` is its place in one
queue. Both are plain slotted objects without cycles among themselves: there may be millions of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.log import Row
    from leveret.broker.queues.queue import Queue

# The format of `Message.header`, by the protocol that received the message: the content header of class basic of 0-9-1, the
# sections of AMQP 1.0, the content header of class basic of 0-9, and that of another class of 0-9.
FORMAT_AMQP0: Final = 0
FORMAT_AMQP1: Final = 1
FORMAT_BASIC_AMQP09: Final = 2
FORMAT_CLASS_AMQP09: Final = 3
# Flag of the formats that are not a content header of class basic.
NOT_BASIC: Final = 1
# By format.
PROTOCOLS: Final = ("0-9-1", "1.0", "0-9", "0-9")

# The parts of `Message.publisher`.
AUDIENCE_SHIFT: Final = 48
CONNECTION: Final = (1 << AUDIENCE_SHIFT) - 1


def is_for(publisher: int, audience: int) -> bool:
    """Return whether a message is for the consumers of an audience, or for all consumers."""
    its = publisher >> AUDIENCE_SHIFT
    return its == 0 or its == audience


DEFAULT_PRIORITY: Final = 4
# Memory of an entry in addition to its body: objects, header, address. Bytes.
ENTRY_OVERHEAD: Final = 700

AVAILABLE: Final = 0
ACQUIRED: Final = 1
ARCHIVED: Final = 2

# Expiry of a TTL of 0: offer the message to consumers with credit, then drop it.
AT_ONCE: Final = 1


class Message:
    """A published message; immutable.

    address     exchange and routing key in the broker's canonical form: byte length, bytes, twice (UTF-8)
    header      the properties as received, in the encoding `format`, which the broker does not parse
    body, size  the content and its size in bytes
    persistent  whether durable queues keep it on disk
    priority    -1 if the publisher gave none
    expires_at  milliseconds of the broker's clock (Unix time), 0 for never, AT_ONCE for a TTL of 0
    headers_at  a hint for decoders of `header`: offset of the headers (AMQP 1.0: of the footer), -1 for none
    publisher   number of the publishing connection (for no-local), 0 if it was in another process; from bit
                AUDIENCE_SHIFT up, the audience according to its content policy. The position of a paged-out message
                includes it
    row, slot   position of the message record in the log; None while it is in memory only. A slot of -1: it has no record,
                but counts as stored once the row is on disk
    """

    __slots__ = (
        "address",
        "body",
        "expires_at",
        "format",
        "header",
        "headers_at",
        "persistent",
        "priority",
        "publisher",
        "row",
        "size",
        "slot",
    )

    def __init__(
        self,
        address: bytes,
        header: bytes,
        body: Body,
        size: int,
        persistent: bool,
        priority: int = -1,
        expires_at: int = 0,
        headers_at: int = -1,
        publisher: int = 0,
        format: int = FORMAT_AMQP0,
    ) -> None:
        self.address = address
        self.header = header
        self.body = body
        self.size = size
        self.persistent = persistent
        self.priority = priority
        self.expires_at = expires_at
        self.headers_at = headers_at
        self.publisher = publisher
        self.format = format
        self.row: Row | None = None
        self.slot = 0

    def count_as_stored_with(self, row: Row) -> None:
        """Count as stored once a row of another message is on disk, unless the message has a record of its own."""
        known = self.row
        if known is None or (self.slot < 0 and known.batch < row.batch):
            self.row = row
            self.slot = -1

    @property
    def exchange(self) -> str:
        return self.address[1 : 1 + self.address[0]].decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        return self.address[2 + self.address[0] :].decode("utf-8", "surrogateescape")


def make_address(exchange: str, routing_key: str) -> bytes:
    """Return the canonical address of a message. Raises ValueError if a part is longer than 255 bytes."""
    name = exchange.encode("utf-8", "surrogateescape")
    key = routing_key.encode("utf-8", "surrogateescape")
    if len(name) > 255 or len(key) > 255:
        raise ValueError("exchange name and routing key may have at most 255 bytes of UTF-8 each")
    return bytes((len(name),)) + name + bytes((len(key),)) + key


class Overlay:
    """Changes by the broker or an outcome to one entry, in addition to the stored bytes of its message.

    address       replaces the message's address (after dead-lettering), None to keep it
    headers       headers to set; a value None removes the header (`x-death`, BCC)
    drop_expiration  whether the `expiration` property is omitted at delivery
    expires_at    replaces the message's (0: never), -1 to keep it
    visible_at    delivery time in milliseconds of the broker's clock; 0: at once
    retries       rejections in this queue after which the entry came back, by `x-retry-delays`
    shows_offset  whether consumers see the entry's offset, its sequence number less one, as `x-stream-offset`; in memory
                  only
    """

    __slots__ = (
        "address",
        "drop_expiration",
        "expires_at",
        "headers",
        "refused",
        "rendered",
        "retries",
        "shows_offset",
        "visible_at",
    )

    def __init__(
        self,
        address: bytes | None = None,
        headers: FieldTable | None = None,
        drop_expiration: bool = False,
        expires_at: int = -1,
    ) -> None:
        self.address = address
        self.headers = headers if headers is not None else {}
        self.drop_expiration = drop_expiration
        self.expires_at = expires_at
        self.visible_at = 0
        self.retries = 0
        self.shows_offset = False
        # In memory only: scopes of consumers that must not get the entry again, and the merged header as cached by its
        # protocol.
        self.refused: dict[object, None] = {}
        self.rendered: bytes | None = None


class Entry:
    """The place of a message in one queue.

    seq             grows by one per entry of a queue; the order, and the identity of an entry on disk (queue id, seq)
    state           AVAILABLE, ACQUIRED or ARCHIVED; `holder` is the consumer that acquired it
    row, slot       position in the log, None for an entry in memory only
    acquired_count  deliveries; more than zero means redelivered
    delivery_count  failed attempts
    """

    __slots__ = ("acquired_count", "delivery_count", "holder", "message", "overlay", "queue", "row", "seq", "slot", "state")

    def __init__(self, queue: Queue, message: Message, seq: int) -> None:
        self.queue = queue
        self.message = message
        self.seq = seq
        self.state = AVAILABLE
        self.holder: Consumer | None = None
        self.row: Row | None = None
        self.slot = 0
        self.acquired_count = 0
        self.delivery_count = 0
        self.overlay: Overlay | None = None


def expires_at(entry: Entry) -> int:
    """Return when the entry expires, 0 for never."""
    overlay = entry.overlay
    if overlay is not None and overlay.expires_at >= 0:
        return overlay.expires_at
    return entry.message.expires_at


def address_of(entry: Entry) -> bytes:
    """Return the address of an entry in its queue."""
    overlay = entry.overlay
    if overlay is not None and overlay.address is not None:
        return overlay.address
    return entry.message.address


def _make_offset_overlay() -> Overlay:
    overlay = Overlay()
    overlay.shows_offset = True
    return overlay


# Shared by all entries whose only change is the offset; never modified.
ONLY_OFFSET: Final = _make_offset_overlay()


def with_offset(overlay: Overlay | None) -> Overlay:
    """Return a copy of an overlay with the offset of the entry added."""
    if overlay is None:
        return ONLY_OFFSET
    added = Overlay(overlay.address, dict(overlay.headers), overlay.drop_expiration, overlay.expires_at)
    added.shows_offset = True
    return added


def own_overlay(entry: Entry) -> Overlay:
    """Return the overlay of an entry for modification."""
    overlay = entry.overlay
    if overlay is None:
        overlay = entry.overlay = Overlay()
    elif overlay is ONLY_OFFSET:
        overlay = entry.overlay = _make_offset_overlay()
    return overlay

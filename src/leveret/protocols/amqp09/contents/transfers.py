"""Encoding of `message.transfer` to the client: with the body inline if it fits one frame, otherwise by reference.

`Message.header` holds the encoded fields from `ttl` on, without the address in between (`wire/amqp0/classes.py`), so that
most transfers are encoded without decoding the header.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.broker.message import Entry, Message
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.consumers import ClassConsumer
from leveret.protocols.amqp091.connection.outgoing import Sending
from leveret.wire.amqp0.classes import MESSAGE
from leveret.wire.amqp0.engine import Engine

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp09.channel.channel import Channel
    from leveret.protocols.amqp09.contents.messages import Messages
    from leveret.protocols.amqp091.channel.channel import Channel as Channel091

# Filter argument of a consumer that keeps checkpoints.
RESUMES: Final = "x-resume"
# Maximum number of deliveries of a channel whose `message.resume` the client has not answered.
MAX_RESUMING: Final = 64
# Bytes between two checkpoints.
CHECKPOINT_EVERY: Final = 8 << 20
INLINE: Final = b"\0"
BY_REFERENCE: Final = b"\1"
_SIZE: Final = struct.Struct(">I").pack
# Class id, method id and ticket.
_START: Final = struct.pack(">HHH", MESSAGE, 10, 0)
_REDELIVERED: Final = 1
# Sizes in the header: class, weight and size; then ttl, priority, timestamp, delivery mode and expiration, which precede
# the address in a transfer.
_FIXED: Final = 12
_BEFORE_ADDRESS: Final = _FIXED + 26
# Overhead of the body of a transfer, in bytes.
BODY_OVERHEAD: Final = 5
# Maximum overhead of a transfer by reference beside its header, destination and address: what `encode` adds, the body
# field, the name of the reference (a channel and a delivery tag), and Qpid's `mandatory`.
TRANSFER_OVERHEAD: Final = 8 - _FIXED + BODY_OVERHEAD + 26 + 1
# Overhead of a `message.append` in bytes, without the name of the reference.
APPEND_OVERHEAD: Final = 12


class MessageConsumer(ClassConsumer):
    """A consumer of class message.

    Attributes:
        destination: the client's name for the consumer, which is also its tag; "" if it has none.
        resumes: whether the client keeps checkpoints of large messages.
    """

    kind = MESSAGE

    def __init__(
        self,
        channel: Channel091,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        no_local: bool,
        priority: int,
        arguments: FieldTable,
    ) -> None:
        super().__init__(channel, queue, tag, no_ack, exclusive, no_local, priority, arguments)
        self.destination = tag
        self.resumes = arguments.get(RESUMES) is True
        self.messages: Messages = channel.messages  # type: ignore[attr-defined]  # a channel of 0-9

    def set_destination(self, destination: str) -> None:
        self.destination = destination

    def has_credit_for(self, size: int) -> bool:
        return len(self.messages.resuming) < MAX_RESUMING and super().has_credit_for(size)

    def deliver(self, entry: Entry) -> None:
        self.messages.deliver(entry, self.destination, not self.no_ack, self.resumes)


class Transfer:
    """A transfer that the client must answer.

    Attributes:
        request: its request id; 0 if methods have none.
        complete: whether it was sent completely, and its reference, if any, is closed. Only then is it in the channel's
            `unacked`.
    """

    __slots__ = ("complete", "entry", "request", "tag")

    def __init__(self, tag: int, entry: Entry) -> None:
        self.tag = tag
        self.entry = entry
        self.complete = False
        self.request = 0


class Resumed:
    """A message sent by reference.

    Attributes:
        payload: encoded transfer.
        identifier: identifier of its checkpoints, the same for every delivery; "" for none.
        request: request id of the `message.resume`; 0 if methods have none.
    """

    __slots__ = ("identifier", "message", "payload", "reference", "request", "transfer")

    def __init__(self, reference: str, payload: bytes, message: Message, transfer: Transfer | None) -> None:
        self.reference = reference
        self.payload = payload
        self.message = message
        self.transfer = transfer
        self.identifier = ""
        self.request = 0


def encode(entry: Entry, header: bytes, destination: str) -> bytes:
    """Return the payload of a `message.transfer` up to its body."""
    overlay = entry.overlay
    address = entry.message.address
    if overlay is not None and overlay.address is not None:
        address = overlay.address
    encoded = destination.encode("utf-8", "surrogateescape")
    bits = _REDELIVERED if entry.acquired_count > 1 else 0
    return b"".join(
        (
            _START,
            bytes((len(encoded),)),
            encoded,
            bytes((bits,)),
            header[_FIXED:_BEFORE_ADDRESS],
            address,
            header[_BEFORE_ADDRESS:],
        )
    )


def body_field(kind: bytes, encoded: bytes) -> bytes:
    """Return the body field of a transfer: the bytes inline, or the name of a reference."""
    return kind + _SIZE(len(encoded)) + encoded


class Appending(Sending):
    """A body that is appended to a reference as the socket accepts it. The reference is closed after its end."""

    __slots__ = ("_unchecked", "channel", "resumed", "room")

    def __init__(self, channel: Channel, resumed: Resumed, body: Body, size: int) -> None:
        super().__init__(channel.number, body, size)
        self.channel = channel
        self.resumed = resumed
        self.room = channel.connection.engine.method_max - APPEND_OVERHEAD - len(resumed.reference)
        # Bytes since the last checkpoint.
        self._unchecked = 0

    def take(self, limit: int) -> list[bytes | memoryview]:
        if self.channel.closing:
            self.at = self._end
            return []
        return Sending.take(self, max(limit // self.room, 1) * self.room)

    def encode(self, engine: Engine, pieces: list[bytes | memoryview]) -> None:
        if self.channel.closing:
            return
        data = b"".join(pieces)
        resumed = self.resumed
        reference = resumed.reference
        for at in range(0, len(data), self.room):
            engine.send(self.number, "message.append", {"reference": reference, "bytes": data[at : at + self.room]})
        if self.is_done():
            self.channel.messages.end(reference, resumed.transfer)
        elif resumed.identifier:
            self._unchecked += len(data)
            if self._unchecked >= CHECKPOINT_EVERY:
                self._unchecked = 0
                engine.send(self.number, "message.checkpoint", {"reference": reference, "identifier": resumed.identifier})

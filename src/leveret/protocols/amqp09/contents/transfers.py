"""Messages of class message on their way to the client: `message.transfer`, inline where one frame takes it, otherwise by
a reference to which the body is appended.

The bytes of the fields from `ttl` on are what `Message.header` holds (`wire/amqp0/classes.py`), with the address in their
midst: mostly nothing has to be decoded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.broker.message import Entry, Message
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.consumers import ClassConsumer
from leveret.protocols.amqp091.connection.outgoing import Sending
from leveret.wire.amqp0.classes import MESSAGE, decode_transfer, encode_transfer
from leveret.wire.amqp0.engine import Engine

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp09.channel.channel import Channel
    from leveret.protocols.amqp09.contents.messages import Messages
    from leveret.protocols.amqp091.channel.channel import Channel as Channel091

# In the filter of a consumer that keeps checkpoints.
RESUMES: Final = "x-resume"
# What one channel is asked to resume at a time.
MAX_RESUMING: Final = 64
# Bytes between two checkpoints.
CHECKPOINT_EVERY: Final = 8 << 20
INLINE: Final = b"\0"
BY_REFERENCE: Final = b"\1"
_SIZE: Final = struct.Struct(">I").pack
# Class, method and ticket.
_START: Final = struct.pack(">HHH", MESSAGE, 10, 0)
_REDELIVERED: Final = 1
# In the header: class, weight and size; then ttl, priority, timestamp, delivery mode and expiration, which come before the
# address.
_FIXED: Final = 12
_BEFORE_ADDRESS: Final = _FIXED + 26
# Of the body of a transfer, beside its bytes.
BODY_OVERHEAD: Final = 5
# Of a `message.append`, beside the reference and the bytes.
APPEND_OVERHEAD: Final = 12


class MessageConsumer(ClassConsumer):
    """A consumer of class message. `destination` is its tag, or "": there may be any number that have no name. `resumes`:
    it keeps checkpoints of what is interrupted."""

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

    def can_take(self, size: int) -> bool:
        return len(self.messages.resuming) < MAX_RESUMING and super().can_take(size)

    def deliver(self, entry: Entry) -> None:
        channel = self.on_channel
        if channel.sized and not self.no_ack:
            channel.unacked_size += entry.message.size
            self.unacked_size += entry.message.size
        self.messages.deliver(entry, self.destination, not self.no_ack, self.resumes)


class Transfer:
    """A transfer that the client has to answer. It is `complete` once its reference is closed, if it has one: until then
    it is not among what the channel holds unacknowledged. `request` is its id, 0 where methods have none."""

    __slots__ = ("complete", "entry", "request", "tag")

    def __init__(self, tag: int, entry: Entry) -> None:
        self.tag = tag
        self.entry = entry
        self.complete = False
        self.request = 0


class Resumed:
    """A message that goes by reference. payload: that of its transfer. identifier: that of its checkpoints, the same
    whenever it is delivered, and "" for none. request: the id of the `message.resume`, 0 where methods have none."""

    __slots__ = ("identifier", "message", "payload", "reference", "request", "transfer")

    def __init__(self, reference: str, payload: bytes, message: Message, transfer: Transfer | None) -> None:
        self.reference = reference
        self.payload = payload
        self.message = message
        self.transfer = transfer
        self.identifier = ""
        self.request = 0


def encode(entry: Entry, header: bytes, destination: str) -> bytes:
    """The payload of a `message.transfer` up to its body."""
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
    """The body of a transfer: what it is, or the name of its reference."""
    return kind + _SIZE(len(encoded)) + encoded


def without_headers(header: bytes, size: int) -> bytes:
    """The header of a message whose own one does not fit the frames of its consumer."""
    arguments = decode_transfer(header)
    arguments["application_headers"] = {}
    arguments["security_token"] = b""
    return encode_transfer(size, arguments)


class Appending(Sending):
    """A body that is appended to a reference as the socket takes it; then the reference is closed."""

    __slots__ = ("_unchecked", "channel", "resumed", "room")

    def __init__(self, channel: Channel, resumed: Resumed, body: Body, size: int) -> None:
        super().__init__(channel.number, body, size)
        self.channel = channel
        self.resumed = resumed
        self.room = channel.connection.engine.method_max - APPEND_OVERHEAD - len(resumed.reference)
        # Bytes since the last checkpoint.
        self._unchecked = 0

    def take(self, limit: int) -> bytes:
        if self.channel.closing:
            self.at = self._end
            return b""
        return Sending.take(self, max(limit // self.room, 1) * self.room)

    def encode(self, engine: Engine, data: bytes) -> None:
        if self.channel.closing:
            return
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

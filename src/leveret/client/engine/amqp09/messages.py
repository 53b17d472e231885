"""Receiving of class message contents: inline, or by reference to appended data. They are answered in order."""

from __future__ import annotations

import io
from collections import deque
from typing import TYPE_CHECKING, ClassVar, cast

from leveret.client.engine.amqp09.files import FileConsumerCore, Incoming
from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import Error
from leveret.client.files import FileContent
from leveret.wire.amqp0.classes import encode_transfer, to_basic
from leveret.wire.amqp0.commands import Deliver, Method
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp09.channel import Amqp09ChannelCore


class MessageConsumerCore(FileConsumerCore):
    """One `message.consume`. Its tag is the destination."""

    kind: ClassVar[str] = "message"

    def clone(self) -> ConsumerCore:
        return MessageConsumerCore(
            cast("Amqp09ChannelCore", self.channel), self.queue, self.prefetch, self.arguments, self._message_class
        )

    def file_received(self, message: FileContent) -> None:
        # Messages that arrive during a cancel are requeued with the others.
        message.settled = self._no_ack
        self._buffer(message)


class _PendingReply:
    """A transfer to answer. `ok` says whether to accept or reject it; None if the application has not settled it."""

    __slots__ = ("ok", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.ok: bool | None = None


class _Reference:
    """A reference of the server, with the numbers and arguments of the transfers that use it."""

    __slots__ = ("incoming", "transfers")

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self.transfers: list[tuple[int, Arguments]] = []


class IncomingMessages:
    """Messages being received on one channel.

    `message.ok` has no identifier, so transfers are answered in order, regardless of the order of settlement.
    """

    def __init__(self, channel: Amqp09ChannelCore) -> None:
        self._channel = channel
        self._references: dict[str, _Reference] = {}
        self._pending_replies: deque[_PendingReply] = deque()
        self._gets: dict[str, tuple[Waiter, bool]] = {}
        self._count = 0
        # Number of transfers to destinations that the channel does not have. They are not answered.
        self._stray = 0

    def lost(self, error: Error) -> None:
        """Keep partial messages for their resumption: the channel is lost."""
        for reference in self._references.values():
            self._channel.incoming.keep_partial(reference.incoming)
        self._references.clear()
        self._pending_replies.clear()
        gets, self._gets = self._gets, {}
        for waiter, _ in gets.values():
            if not waiter.done():
                waiter.set_exception(error)

    def recovered(self) -> None:
        """Handle a sent `message.recover`: everything is redelivered except transfers that are still incomplete."""
        under_way = {tag for reference in self._references.values() for tag, _ in reference.transfers}
        self._pending_replies = deque(one for one in self._pending_replies if one.tag in under_way)

    def expect(self, destination: str, waiter: Waiter, no_ack: bool) -> None:
        """Register a waiter for the transfer of a `message.get`."""
        self._gets[destination] = (waiter, no_ack)

    # Replies

    def settle(self, tag: int, ok: bool, multiple: bool) -> None:
        """Settle a transfer, and answer all transfers before the first unsettled one."""
        for one in self._pending_replies:
            if one.ok is None and (one.tag == tag or (multiple and one.tag <= tag)):
                one.ok = ok
        while self._pending_replies and self._pending_replies[0].ok is not None:
            if self._pending_replies.popleft().ok:
                self._channel.send("message.ok")
            else:
                self._channel.send("message.reject", {"code": 0, "text": "rejected by the application"})

    # Received methods

    def transfer(self, command: Method) -> None:
        """Handle `message.transfer`."""
        arguments = command.arguments
        destination = arguments["destination"]
        if destination not in self._gets and self._consumer_of(destination) is None:
            if self._channel.refuses(self._stray, "messages to unknown destinations"):
                return
            self._stray += 1
        self._count += 1
        tag = self._count
        if not self._is_no_ack(destination):
            self._pending_replies.append(_PendingReply(tag))
        kind, content = arguments["body"]
        if kind == 0:
            self._complete(tag, arguments, Incoming("", len(content), io.BytesIO(content), None))
            return
        reference = self._references.get(content.decode("utf-8", "surrogateescape"))
        if reference is None:
            return
        pending = sum(len(each.transfers) for each in self._references.values())
        if not self._channel.refuses(pending, "transfers by reference"):
            reference.transfers.append((tag, arguments))

    def open(self, command: Method) -> None:
        """Handle `message.open`."""
        if self._channel.refuses(len(self._references), "open references"):
            return
        self._references[_text(command.arguments["reference"])] = _Reference(self._channel.incoming.temporary())

    def resume(self, command: Method) -> None:
        """Answer `message.resume` with the size received so far."""
        if self._channel.refuses(len(self._references), "open references"):
            return
        incoming = self._channel.incoming.find(command.arguments["identifier"], None)
        self._references[_text(command.arguments["reference"])] = _Reference(incoming)
        self._channel.send("message.offset", {"value": incoming.file.tell()})

    def append(self, command: Method) -> None:
        """Handle `message.append`."""
        reference = self._references.get(_text(command.arguments["reference"]))
        if reference is not None:
            data = command.arguments["bytes"]
            reference.incoming.write(data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape"))

    def checkpoint(self, command: Method) -> None:
        """Ignore `message.checkpoint`, because the data is kept anyway."""

    def close(self, command: Method) -> None:
        """Handle `message.close`: the message is complete."""
        reference = self._references.pop(_text(command.arguments["reference"]), None)
        if reference is not None:
            for tag, arguments in reference.transfers:
                self._complete(tag, arguments, reference.incoming)

    def _is_no_ack(self, destination: str) -> bool:
        if destination in self._gets:
            return self._gets[destination][1]
        consumer = self._consumer_of(destination)
        return consumer is not None and bool(consumer.arguments.get("no_ack"))

    def _consumer_of(self, destination: str) -> ConsumerCore | None:
        return self._channel.consumer_of(destination.encode("utf-8", "surrogateescape"))

    def _complete(self, tag: int, arguments: Arguments, incoming: Incoming) -> None:
        channel = self._channel
        destination: str = arguments["destination"]
        size = incoming.file.seek(0, 2)
        described = Deliver(
            channel.number,
            destination.encode("utf-8", "surrogateescape"),
            tag,
            arguments["redelivered"],
            encode_address(arguments["exchange"], arguments["routing_key"]),
            to_basic(encode_transfer(size, arguments)),
            size,
            b"",
        )
        message = channel.connection.frontend.file_class(channel, described)
        message.kind = "message"
        message.identifier = incoming.identifier
        message.file, message.path = incoming.file, incoming.path
        incoming.file.seek(0)
        if destination in self._gets:
            waiter, message.settled = self._gets.pop(destination)
            if not waiter.done():
                waiter.set_result(message)
            return
        consumer = channel.consumer_of(described.consumer_tag)
        if incoming.failed is not None:
            channel.incoming.fail(consumer, incoming.failed)
        elif isinstance(consumer, FileConsumerCore):
            consumer.file_received(message)


def _text(reference: str | bytes) -> str:
    return reference if isinstance(reference, str) else reference.decode("utf-8", "surrogateescape")

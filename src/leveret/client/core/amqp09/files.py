"""Class file as it is received: staged by the server, octet by octet to a file, and then delivered."""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, cast

from leveret.client.core.consumer import ConsumerCore
from leveret.client.core.encoding import encode_address
from leveret.client.errors import ChannelClosed
from leveret.client.files import FileContent
from leveret.client.message import Message
from leveret.wire.amqp0.classes import to_basic
from leveret.wire.amqp0.commands import ContentMethod, Deliver, Method

if TYPE_CHECKING:
    from leveret.client.core.amqp09.channel import Amqp09Channel

# Files without a directory are in memory up to so many octets.
MAX_IN_MEMORY: Final = 1 << 20
# Files that have come in part, without a directory, are kept for when they come again: so many of a channel.
MAX_PARTIAL_FILES: Final = 64


class FileConsumerCore(ConsumerCore):
    """One `file.consume`. What waits is on disk: it counts for no limit of memory."""

    kind: ClassVar[str] = "file"

    def __init__(self, channel: Amqp09Channel, queue: str, prefetch: int, arguments: dict[str, Any],
                 message_class: type[Message]) -> None:
        super().__init__(channel, queue, prefetch, arguments, message_class)
        self._counted = False

    def clone(self) -> ConsumerCore:
        return FileConsumerCore(cast("Amqp09Channel", self.channel), self.queue, self.prefetch, self.arguments,
                                self._message_class)

    def lost(self) -> None:
        if not self._no_ack:
            for message in self.messages:
                cast("FileContent", message).file.close()
        super().lost()

    def file_received(self, message: FileContent) -> None:
        """A file is here as a whole."""
        message.settled = self._no_ack
        if (self.cancelling or self.channel.recovering) and not self._no_ack:
            if not self.channel.recovering:
                message.reject(requeue=True)
            return
        self.messages.append(message)
        if self._waiters.waiting:
            self._waiters.wake()


class Incoming:
    """A file of which some octets may be here."""

    __slots__ = ("failed", "file", "identifier", "path", "size")

    def __init__(self, identifier: str, size: int | None, file: IO[bytes], path: Path | None) -> None:
        self.identifier = identifier
        self.size = size
        self.file = file
        self.path = path
        # Why its octets cannot be kept.
        self.failed: OSError | None = None

    def write(self, data: bytes) -> None:
        """Once that has failed, nothing more is written."""
        if self.failed is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.failed = error


class IncomingFiles:
    """Those of one channel: `file.open` has no consumer, so that all of its consumers use one directory."""

    def __init__(self, channel: Amqp09Channel) -> None:
        self._channel = channel
        self._directory: Path | None = None
        self._used = False
        self._opened: deque[Incoming] = deque()
        self._delivering: deque[tuple[Incoming, bytes]] = deque()
        # In part, without a directory, of a connection that was lost.
        self._partial: dict[str, Incoming] = {}

    def use(self, directory: str | None) -> None:
        """Raises `ValueError` for another directory than before, and `OSError` for one that cannot be used."""
        wanted = None if directory is None else Path(directory)
        if self._used and wanted != self._directory:
            raise ValueError(f"the channel receives files {_destination(self._directory)}, and all of its consumers do so;"
                             f" expected another channel for those {_destination(wanted)}")
        if wanted is not None:
            wanted.mkdir(parents=True, exist_ok=True)
        self._directory = wanted
        self._used = True

    def lost(self) -> None:
        """The channel is gone: what is here waits to be delivered again."""
        for incoming in (*self._opened, *(incoming for incoming, _ in self._delivering)):
            self.keep_partial(incoming)
        self._opened.clear()
        self._delivering.clear()

    def keep_partial(self, incoming: Incoming) -> None:
        """It has come in part."""
        if incoming.path is not None:
            incoming.file.close()
        elif incoming.identifier and incoming.failed is None and len(self._partial) < MAX_PARTIAL_FILES:
            self._partial[incoming.identifier] = incoming

    # What the server says

    def open(self, command: Method) -> None:
        """`file.open`: answered with what is here already."""
        identifier, size = command.arguments["identifier"], command.arguments["content_size"]
        staged = 0
        try:
            incoming = self._find(identifier, size)
            staged = incoming.file.tell()
        except OSError as error:
            incoming = self.temporary()
            incoming.identifier, incoming.size, incoming.failed = identifier, size, error
        self._opened.append(incoming)
        self._channel.send("file.open-ok", {"staged_size": staged})

    def temporary(self) -> Incoming:
        """For what cannot be resumed."""
        return Incoming("", None, cast("IO[bytes]", tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)), None)

    def find(self, identifier: str, size: int | None) -> Incoming:
        """What is here of a content, ready to be written on, or nothing."""
        try:
            return self._find(identifier, size)
        except OSError as error:
            incoming = self.temporary()
            incoming.failed = error
            return incoming

    def _find(self, identifier: str, size: int | None) -> Incoming:
        """The file, ready to be written on."""
        directory = self._directory
        if directory is None:
            incoming = self._partial.pop(identifier, None)
            if incoming is None or incoming.size != size:
                return Incoming(identifier, size, cast("IO[bytes]", tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)), None)
            incoming.file.seek(0, 2)
            return incoming
        # An identifier is the server's, and nothing to name a file by.
        path = directory / hashlib.sha256(identifier.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        file = path.open("ab+")
        if size is not None and file.seek(0, 2) > size:
            file.truncate(0)
        file.seek(0, 2)
        return Incoming(identifier, size, file, path)

    def begin(self, method: ContentMethod) -> None:
        """A `file.stage` begins: of the file that was opened first."""

    def part(self, data: bytes) -> None:
        """Octets of it."""
        if self._opened:
            self._opened[0].write(data)

    def staged(self, command: ContentMethod) -> None:
        """All octets of it have come."""
        if self._opened:
            self._delivering.append((self._opened.popleft(), command.header))

    def deliver(self, command: Method) -> None:
        """`file.deliver`, of the file that was staged last."""
        if not self._delivering:
            return
        incoming, header = self._delivering.popleft()
        channel = self._channel
        arguments = command.arguments
        tag = arguments["consumer_tag"].encode("utf-8", "surrogateescape")
        described = Deliver(
            channel.number, tag, arguments["delivery_tag"], arguments["redelivered"],
            encode_address(arguments["exchange"], arguments["routing_key"]), to_basic(header), incoming.size or 0, b"")
        message = channel.connection.frontend.file_class(channel, described)
        message.identifier = incoming.identifier
        message.file, message.path = incoming.file, incoming.path
        consumer = channel.consumer_of(tag)
        failed = incoming.failed
        if failed is None:
            try:
                incoming.file.flush()
                incoming.file.seek(0)
            except OSError as error:
                failed = error
        if failed is not None:
            self._refuse(message, consumer, failed)
        elif isinstance(consumer, FileConsumerCore):
            consumer.file_received(message)
        else:
            message.reject(requeue=True)

    def _refuse(self, message: FileContent, consumer: ConsumerCore | None, failed: OSError) -> None:
        """There is no room for it here: others may have it, and whoever waits for it is told."""
        message.reject(requeue=True)
        self.fail(consumer, failed)

    def fail(self, consumer: ConsumerCore | None, failed: OSError) -> None:
        """End a consumer whose contents cannot be kept."""
        if consumer is not None and not consumer.ended:
            consumer.abandon()
            consumer.end(ChannelClosed(
                f"a file of queue '{consumer.queue}' cannot be kept {_destination(self._directory)}: {failed}"))


def _destination(directory: Path | None) -> str:
    return "without a directory" if directory is None else f"into directory '{directory}'"

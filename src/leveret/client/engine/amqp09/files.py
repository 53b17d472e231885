"""Receiving contents of class file: the server stages them to a local file, then delivers them."""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Final, cast

from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.errors import ChannelClosed
from leveret.client.files import FileContent
from leveret.client.message import Message
from leveret.wire.amqp0.classes import to_basic
from leveret.wire.amqp0.commands import ContentMethod, Deliver, Method

if TYPE_CHECKING:
    from leveret.client.engine.amqp09.channel import Amqp09ChannelCore

# Bytes up to which a file without a directory is kept in memory.
MAX_MEMORY_BYTES: Final = 1 << 20
# Maximum number of files, and of references, that a server may have open on a channel.
MAX_OPEN: Final = 256
# Maximum number of partial files per channel to keep for a redelivery, without a directory.
MAX_PARTIAL_FILES: Final = 64


class FileConsumerCore(ConsumerCore):
    """One `file.consume`. A large buffered file is on disk, and counts for backpressure as its limit in memory."""

    kind: ClassVar[str] = "file"

    def clone(self) -> ConsumerCore:
        return FileConsumerCore(
            cast("Amqp09ChannelCore", self.channel), self.queue, self.prefetch, self.arguments, self._message_class
        )

    def lost(self) -> None:
        if not self._no_ack:
            for message in self.messages:
                cast("FileContent", message).file.close()
        super().lost()

    def file_received(self, message: FileContent) -> None:
        """Handle a complete file."""
        message.settled = self._no_ack
        if (self.cancelling or self.channel.recovering) and not self._no_ack:
            if not self.channel.recovering:
                message.reject(requeue=True)
            return
        self._buffer(message)

    def _buffered_size(self, message: Message) -> int:
        return min(message.size, MAX_MEMORY_BYTES)


class Incoming:
    """A file being received.

    Attributes:
        failed: The error that prevents writing, or None.
    """

    __slots__ = ("failed", "file", "identifier", "path", "size")

    def __init__(self, identifier: str, size: int | None, file: IO[bytes], path: Path | None) -> None:
        self.identifier = identifier
        self.size = size
        self.file = file
        self.path = path
        self.failed: OSError | None = None

    def write(self, data: bytes) -> None:
        """Append data. Does nothing after a failure."""
        if self.failed is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.failed = error


class IncomingFiles:
    """Files being received on one channel. `file.open` names no consumer, so all consumers share one directory."""

    def __init__(self, channel: Amqp09ChannelCore) -> None:
        self._channel = channel
        self._directory: Path | None = None
        self._used = False
        self._opened: deque[Incoming] = deque()
        self._delivering: deque[tuple[Incoming, bytes]] = deque()
        # Partial files of lost connections, without a directory.
        self._partial: dict[str, Incoming] = {}

    def set_directory(self, directory: str | None) -> None:
        """Set the directory.

        Raises:
            ValueError: The channel already uses another directory.
            OSError: The directory cannot be created.
        """
        directory_path = None if directory is None else Path(directory)
        if self._used and directory_path != self._directory:
            raise ValueError(
                f"all consumers of the channel receive files {_destination(self._directory)}; expected another"
                f" channel for files {_destination(directory_path)}"
            )
        if directory_path is not None:
            directory_path.mkdir(parents=True, exist_ok=True)
        self._directory = directory_path
        self._used = True

    def lost(self) -> None:
        """Keep partial files for their redelivery: the channel is lost."""
        for incoming in (*self._opened, *(incoming for incoming, _ in self._delivering)):
            self.keep_partial(incoming)
        self._opened.clear()
        self._delivering.clear()

    def keep_partial(self, incoming: Incoming) -> None:
        """Keep a partial file."""
        if incoming.path is not None:
            incoming.file.close()
        elif incoming.identifier and incoming.failed is None and len(self._partial) < MAX_PARTIAL_FILES:
            self._partial[incoming.identifier] = incoming

    # Received methods

    def open(self, command: Method) -> None:
        """Answer `file.open` with the size received so far."""
        if self._channel.refuses(len(self._opened) + len(self._delivering), "open files"):
            return
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
        """Return a temporary file for content that cannot be resumed."""
        return Incoming("", None, cast("IO[bytes]", tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)), None)

    def find(self, identifier: str, size: int | None) -> Incoming:
        """Return the partial file with this identifier, positioned at its end, or an empty file."""
        try:
            return self._find(identifier, size)
        except OSError as error:
            incoming = self.temporary()
            incoming.failed = error
            return incoming

    def _find(self, identifier: str, size: int | None) -> Incoming:
        """Return the file, positioned at its end."""
        directory = self._directory
        if directory is None:
            incoming = self._partial.pop(identifier, None)
            if incoming is None or incoming.size != size:
                return Incoming(identifier, size, cast("IO[bytes]", tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)), None)
            incoming.file.seek(0, 2)
            return incoming
        # The server chooses the identifier, so it must not become part of a path.
        path = directory / hashlib.sha256(identifier.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        file = path.open("ab+")
        if size is not None and file.seek(0, 2) > size:
            file.truncate(0)
        file.seek(0, 2)
        return Incoming(identifier, size, file, path)

    def begin(self, method: ContentMethod) -> None:
        """Handle the start of a `file.stage`, which belongs to the first opened file."""

    def part(self, data: bytes) -> None:
        """Append staged bytes."""
        if self._opened:
            self._opened[0].write(data)

    def staged(self, command: ContentMethod) -> None:
        """Handle the end of a `file.stage`."""
        if self._opened:
            self._delivering.append((self._opened.popleft(), command.header))

    def deliver(self, command: Method) -> None:
        """Handle `file.deliver`, which belongs to the first staged file."""
        if not self._delivering:
            return
        incoming, header = self._delivering.popleft()
        channel = self._channel
        arguments = command.arguments
        tag = arguments["consumer_tag"].encode("utf-8", "surrogateescape")
        described = Deliver(
            channel.number,
            tag,
            arguments["delivery_tag"],
            arguments["redelivered"],
            encode_address(arguments["exchange"], arguments["routing_key"]),
            to_basic(header),
            incoming.size or 0,
            b"",
        )
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
        """Requeue a file that cannot be stored here, and report it to its consumer."""
        message.reject(requeue=True)
        self.fail(consumer, failed)

    def fail(self, consumer: ConsumerCore | None, failed: OSError) -> None:
        """End a consumer whose files cannot be stored."""
        if consumer is not None and not consumer.ended:
            consumer.abandon()
            consumer.end(
                ChannelClosed(
                    f"a file of queue '{consumer.queue}' cannot be stored {_destination(self._directory)}: {failed}"
                )
            )


def _destination(directory: Path | None) -> str:
    return "in temporary files" if directory is None else f"in directory '{directory}'"

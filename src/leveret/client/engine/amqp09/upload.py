"""Sending of class file contents: staged in chunks, and published when complete.

Each chunk is one `file.open` with one `file.stage`, so that an interruption between chunks leaves no partial chunk. Several
chunks may be in flight. The server keeps the received part of an upload after a lost connection.
"""

from __future__ import annotations

import uuid
from typing import IO, Final

from leveret.client.engine.amqp09.channel import Amqp09ChannelCore
from leveret.client.engine.amqp09.outgoing import ContentPublish, content_header
from leveret.client.engine.amqp09.sources import read_exactly
from leveret.client.engine.common.encoding import encode_flags
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, PropertyValue
from leveret.wire.amqp0.classes import FILE
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.values import Arguments

# Bytes per chunk, and maximum number of chunks in flight.
CHUNK_SIZE: Final = 1 << 20
MAX_IN_FLIGHT: Final = 4


class Upload:
    """One file being sent.

    Attributes:
        size: Size of the file in bytes.
        sent: Bytes sent so far, including those that the server already had.
        identifier: Identifier of the upload.
    """

    def __init__(
        self,
        file: IO[bytes],
        exchange: str,
        routing_key: str,
        identifier: str,
        mandatory: bool,
        immediate: bool,
        filename: str | None,
        properties: Properties | None,
        keywords: dict[str, PropertyValue],
    ) -> None:
        self._file = file
        self._start = file.tell()
        self.size = file.seek(0, 2) - self._start
        self.sent = 0
        # Number of chunks whose `file.open` is unanswered.
        self._in_flight = 0
        self.identifier = identifier or uuid.uuid4().hex
        if len(self.identifier.encode("utf-8", "surrogateescape")) > 255:
            raise InvalidMessage("identifier too long; expected at most 255 bytes in UTF-8")
        self._described = (properties, keywords, filename)
        self._header = self._header_of(0)
        self._flags = encode_flags(mandatory, immediate)
        self._exchange, self._routing_key = exchange, routing_key
        # Encode once to detect invalid properties before anything is sent.
        self.outgoing()

    def _header_of(self, size: int) -> bytes:
        properties, keywords, filename = self._described
        return content_header(FILE, size, properties, keywords, (("filename", filename),))

    def outgoing(self) -> ContentPublish:
        """Return the publish of the staged file. It is never repeated without the upload, which may be lost."""
        outgoing = ContentPublish(
            "file.publish",
            self._exchange,
            self._routing_key,
            self._flags,
            self._header,
            b"",
            {"identifier": self.identifier},
            has_content=False,
        )
        outgoing.at_most_once = True
        return outgoing

    def open(self, channel: Amqp09ChannelCore) -> Waiter:
        """Open the upload. The server's reply positions the file for resuming."""

        def opened(reply: Method, abandoned: bool) -> None:
            self.sent = reply.arguments["staged_size"]
            self._file.seek(self._start + self.sent)

        self._in_flight = 0
        return channel.call("file.open", self._arguments, opened)

    @property
    def _arguments(self) -> Arguments:
        return {"identifier": self.identifier, "content_size": self.size}

    def can_send(self, channel: Amqp09ChannelCore) -> bool:
        """Whether the next chunk may be sent; `Amqp09ChannelCore.flow_waiter` waits for it."""
        return channel.flowing and self._in_flight < MAX_IN_FLIGHT

    @property
    def complete(self) -> bool:
        """Whether everything was sent."""
        return self.sent >= self.size

    def read(self) -> bytes:
        """Read the next chunk. Raises `InvalidMessage` if the file was truncated."""
        return read_exactly(self._file, min(CHUNK_SIZE, self.size - self.sent), self.size)

    def stage(self, channel: Amqp09ChannelCore, data: bytes) -> None:
        """Send a chunk of the open upload, and open the next one."""

        def opened(reply: Method, abandoned: bool) -> None:
            self._in_flight -= 1
            channel.update_flow()

        channel.stage(self._header_of(len(data)), data)
        self.sent += len(data)
        if not self.complete:
            self._in_flight += 1
            channel.cast("file.open", self._arguments, opened)
            channel.connection.ensure_reading()

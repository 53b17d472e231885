"""Relays between clients and their shards, if TLS or the WebSocket ends at the front, or the shard is in another node.

A relay has one end of a socket pair or connection; the shard has adopted the other one. Input of the client passes as it
is. Output of the shard passes in complete frames only, so that the client of a shard that dies can still be sent a close.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from abc import ABC, abstractmethod
from typing import Final, TypeAlias

from leveret.protocols.amqp091.reply_codes import reply_text
from leveret.protocols.amqp10.connection.opening import ESTABLISHMENT_FAILED
from leveret.protocols.amqp10.errors import make_error
from leveret.protocols.detect import V0_9, V0_9_1
from leveret.server.transport import SocketPeer, break_cycle
from leveret.wire.amqp0.constants import (
    CONNECTION_FORCED,
    FRAME_END,
    FRAME_HEADER_SIZE,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    FRAME_REQUEST,
    FRAME_RESPONSE,
)
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.specs import V0_9_1 as AMQP091
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.descriptors import CLOSE
from leveret.wire.amqp10.frames import HEADER_SIZE
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Close, Open
from leveret.wire.frame_ends import find_frames

logger = logging.getLogger("leveret.connection")

# Bytes per read from a shard, into one buffer for all relays, and from a client.
READ_SIZE: Final = 256 << 10
_ROOM: Final = memoryview(bytearray(READ_SIZE))
# Seconds for a client to reply to the close that it is sent after the end of its shard.
CLOSE_TIMEOUT: Final = 1.0
REASON: Final = "the shard of the connection has stopped"
# Bytes at the start of a frame that tell whether it is a close.
HEAD_SIZE: Final = 16

# A frame's type, channel, payload size, and the class and method of a method frame.
_METHOD: Final = struct.Struct(">BHIHH")
_CLOSES: Final = ((10, 50), (10, 51))
_CLOSE_OK: Final = _METHOD.pack(FRAME_METHOD, 0, 4, 10, 51) + bytes((FRAME_END,))
# The start of the body of a close of 1.0, as most peers send it, and the bytes at the end of input that may have one.
_CLOSE: Final = bytes((0x00, 0x53, CLOSE))
_MAX_CLOSE: Final = 64


# The task that attaches the protocol of a relay to its socket.
Connecting: TypeAlias = "asyncio.Task[tuple[asyncio.Transport, ShardEnd]]"


class Frames(ABC):
    """The frames in the output of a shard.

    Args:
        size_at: The position of the size in the header of a frame.
        header_size: The size of the header.
        overhead: What the size does not count.

    Attributes:
        head: The start of the last complete frame; empty before the first one.
    """

    def __init__(self, size_at: int, header_size: int, overhead: int) -> None:
        self.head = b""
        self._size_at = size_at
        self._header_size = header_size
        self._overhead = overhead
        # An incomplete frame, and the number of bytes at which it is looked at again.
        self._partial = bytearray()
        self._needed = 0

    def complete(self, data: bytes) -> bytes:
        """Return the complete frames in the output so far that were not returned yet."""
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._needed:
                return b""
            data = bytes(partial)
            partial.clear()
        last, pos, self._needed = find_frames(data, self._size_at, self._header_size, self._overhead)
        if pos:
            self.head = data[last : min(last + HEAD_SIZE, pos)]
        if pos == len(data):
            return data
        partial += memoryview(data)[pos:]
        return data[:pos]

    @abstractmethod
    def close(self, reason: str) -> bytes:
        """Return the frames that close the connection after the last complete frame; empty if that has closed it."""

    @abstractmethod
    def is_reply(self, data: bytes) -> bool:
        """Return whether input of the client seems to end with its reply to the close."""


class Amqp0Frames(Frames):
    """The frames of 0-9-1 and 0-9."""

    def __init__(self) -> None:
        super().__init__(3, FRAME_HEADER_SIZE, FRAME_OVERHEAD)

    def close(self, reason: str) -> bytes:
        if len(self.head) >= _METHOD.size:
            type, _, _, class_id, method_id = _METHOD.unpack_from(self.head)
            # In the numbered frames of Qpid's clients of 2007, a close would need the next number.
            if type in (FRAME_REQUEST, FRAME_RESPONSE) or (type == FRAME_METHOD and (class_id, method_id) in _CLOSES):
                return b""
        payload = encode_arguments(
            AMQP091.by_name["connection.close"],
            {"reply_code": CONNECTION_FORCED, "reply_text": reply_text(CONNECTION_FORCED, reason)},
            RABBITMQ,
        )
        return struct.pack(">BHI", FRAME_METHOD, 0, len(payload)) + payload + bytes((FRAME_END,))

    def is_reply(self, data: bytes) -> bool:
        return data.endswith(_CLOSE_OK)


class Amqp10Frames(Frames):
    """The frames of 1.0."""

    def __init__(self) -> None:
        super().__init__(0, HEADER_SIZE, 0)

    def close(self, reason: str) -> bytes:
        output = Output()
        if not self.head:
            output.send(Open("leveret", properties={ESTABLISHMENT_FAILED: True}))
        elif self.head.startswith(_CLOSE, HEADER_SIZE):
            return b""
        output.send(Close(make_error(constants.CONNECTION_FORCED, reason)))
        return output.to_send()

    def is_reply(self, data: bytes) -> bool:
        return _CLOSE in data[-_MAX_CLOSE:]


class Relay:
    """Receiver of a client's socket, which passes the input to a shard by a `ShardEnd`, and the output back.

    Args:
        client: The client's socket, of which nothing is read at the moment.
        protocol: The protocol, a result of `detect`.
        near: The other end of the socket that the shard adopts. The relay closes it.
    """

    def __init__(self, client: SocketPeer, protocol: int, near: socket.socket) -> None:
        self.client = client
        self.frames: Frames = Amqp0Frames() if protocol in (V0_9_1, V0_9) else Amqp10Frames()
        self._reason = REASON
        # None before the event loop has taken the socket, and after its end.
        self._shard: asyncio.Transport | None = None
        self._ended = False
        self._lost = False
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(loop.connect_accepted_socket(lambda: ShardEnd(self), near))
        connecting.add_done_callback(self._connected)
        # The event loop does not keep tasks.
        self._connecting: Connecting | None = connecting
        client.pass_to(self)
        client.opened()
        client.limit_reads(READ_SIZE, False)

    # The client

    def data_received(self, data: bytes | memoryview) -> None:
        """Pass input to the shard. After its end, wait for the client's reply to the close."""
        if self._shard is not None:
            self._shard.write(bytes(data))
        elif self._ended and self.frames.is_reply(bytes(data)):
            self.client.close()

    def pause_writing(self) -> None:
        """Read no more from the shard, because the client does not read."""
        if self._shard is not None:
            self._shard.pause_reading()

    def resume_writing(self) -> None:
        """Read from the shard again."""
        if self._shard is not None:
            self._shard.resume_reading()

    def connection_lost(self) -> None:
        """Let the shard know that the client is gone, after what it has sent."""
        self._lost = True
        if self._shard is not None:
            self._shard.close()

    # The shard

    def _connected(self, connecting: Connecting) -> None:
        self._connecting = None
        if connecting.cancelled() or connecting.exception() is not None:
            self.shard_lost()

    def shard_connected(self, transport: asyncio.Transport) -> None:
        """Begin to relay."""
        if self._lost or self._ended:
            transport.abort()
            return
        self._shard = transport
        self.client.resume_reading()

    def shard_lost(self) -> None:
        """Close the client's connection, unless the shard has closed it."""
        self._shard = None
        if self._lost or self._ended:
            return
        self._ended = True
        close = self.frames.close(self._reason)
        if not close:
            self.client.close()
            return
        logger.warning("%s: connection closed: %s", self.client.subject, self._reason)
        self.client.resume_reading()
        self.client.write(close)
        self.client.call_later(CLOSE_TIMEOUT, self.client.close)

    def cut(self, reason: str) -> None:
        """End the relay, and close the client's connection for this reason."""
        shard = self._shard
        self._reason = reason
        self.shard_lost()
        if shard is not None:
            shard.abort()


class ShardEnd(asyncio.BufferedProtocol):
    """asyncio protocol of the socket between a relay and the shard."""

    __slots__ = ("_relay", "_transport")

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._relay.shard_connected(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        data = self._relay.frames.complete(bytes(_ROOM[:nbytes]))
        if data:
            self._relay.client.write(data)

    def pause_writing(self) -> None:
        """Read no more from the client, because the shard does not read."""
        self._relay.client.pause_reading()

    def resume_writing(self) -> None:
        self._relay.client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.shard_lost()
        break_cycle(self._transport)
        self._transport = None

"""The link between the front and a shard: messages and sockets over a socket pair that keeps packet boundaries.

A packet is a byte that says whether more packets of the message follow, and a part of the message in MessagePack. The
first packet of `Adopt` carries the socket.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from leveret.config import Config
from leveret.node.part import Record
from leveret.protocols.adoption import Adoption

logger = logging.getLogger("leveret.cluster")

# Bytes of a message in one packet, and of the send buffer, which must take a packet.
_PACKET_SIZE: Final = 64 << 10
_BUFFER_SIZE: Final = 256 << 10
_MORE: Final = b"\x01"
_LAST: Final = b"\x00"
# Packets and bytes that wait for a peer that does not read, above which the link takes no more sockets.
MAX_WAITING: Final = 4096
MAX_WAITING_BYTES: Final = 4 << 20
# Packets that are received in one turn.
_MAX_RECEIVED: Final = 64


class Records(msgspec.Struct, frozen=True, tag=True):
    """To a shard that begins: some of the shared records. `Begin` follows."""

    records: list[Record]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the last of the shared records."""

    records: list[Record]


class Change(msgspec.Struct, frozen=True, tag=True):
    """To a shard: changed shared records. `Applied` answers it with the number."""

    number: int
    records: list[Record]


class Adopt(msgspec.Struct, frozen=True, tag=True):
    """To a shard, with a socket: a connection to serve."""

    adoption: Adoption


class Declare(msgspec.Struct, frozen=True, tag=True):
    """To a shard: vhosts of the configuration to create."""

    vhosts: list[str]


class Disown(msgspec.Struct, frozen=True, tag=True):
    """To a shard: another node is gone. The connections of its clients have to end."""

    node: str


class KnownHosts(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the nodes that clients can connect to, as `known-hosts` of AMQP 0-9."""

    hosts: str


class Listeners(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the addresses that the front listens on, as URLs. Its shovels start, since they may connect to them."""

    urls: list[str]


class OtherChannels(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the numbers of channels in other shards, by user."""

    counts: dict[str, int]


class Reload(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the configuration that is in effect from now on."""

    config: Config


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a shard: stop, and close the clients with this reason.

    Attributes:
        reason: The reason.
        client_timeout: Seconds for the clients to answer; None for those of the configuration.
    """

    reason: str
    client_timeout: float | None = None


class Beat(msgspec.Struct, frozen=True, tag=True):
    """To either: the sender lives. A shard also sends it while it recovers its store, as long as that makes progress."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """To the front: the store is recovered. It has these vhosts, and these shared records if the settings ask for them."""

    vhosts: list[str]
    shared: list[Record]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """To the front: the shard takes connections."""


class Suspended(msgspec.Struct, frozen=True, tag=True):
    """To the front: the store has failed. The shard takes no connections until it is `Ready` again."""


class Applied(msgspec.Struct, frozen=True, tag=True):
    """To the front: the change with this number, and those before it, are applied."""

    number: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """To the front: an adopted connection has ended. The number is that of its adoption."""

    connection: int


class Vhosts(msgspec.Struct, frozen=True, tag=True):
    """To the front: vhosts were created or deleted."""

    added: list[str]
    removed: list[str]


class Channels(msgspec.Struct, frozen=True, tag=True):
    """To the front: the numbers of channels of the users that have a limit on it."""

    counts: dict[str, int]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """To the front: the shard cannot start."""

    text: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """To the front: another node has claimed the shard, or may claim it."""


class Audited(msgspec.Struct, frozen=True, tag=True):
    """To the front: a record of the audit log, as JSON. `AuditWritten` answers it with the number."""

    number: int
    record: bytes


class AuditWritten(msgspec.Struct, frozen=True, tag=True):
    """To a shard: the record with this number, and those before it, are written."""

    number: int


Message: TypeAlias = (
    Records
    | Begin
    | Change
    | Adopt
    | Declare
    | Disown
    | KnownHosts
    | Listeners
    | OtherChannels
    | Reload
    | Stop
    | Beat
    | Opened
    | Ready
    | Suspended
    | Applied
    | Ended
    | Vhosts
    | Channels
    | Refused
    | Lost
    | Audited
    | AuditWritten
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new link."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_SIZE)
    return pair


class Link:
    """One end of a link.

    Args:
        end: The socket. The link closes it.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received: Callable[[Message, socket.socket | None], None] | None = None
        self._closed: Callable[[], None] | None = None
        self._drained: Callable[[], None] | None = None
        self._parts: list[bytes] = []
        self._adopted: socket.socket | None = None
        # Packets that the peer has not taken yet, each with the socket that it carries.
        self._waiting: deque[tuple[bytes, socket.socket | None]] = deque()
        self._waiting_bytes = 0

    # Blocking use, before the event loop serves the link

    def is_readable(self) -> bool:
        """Return whether the peer has sent something, or closed the link."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive_first(self) -> Message:
        """Wait for the next message and return it. Raises `EOFError` if the peer has closed the link."""
        while True:
            message = self._take_packet()
            if message is not None:
                return message[0]

    # Use on the event loop

    def start(
        self,
        received: Callable[[Message, socket.socket | None], None],
        closed: Callable[[], None],
        drained: Callable[[], None] | None = None,
    ) -> None:
        """Serve the link on the running event loop.

        Args:
            received: Called with each message, and with the socket that it carries.
            closed: Called once when the peer has closed the link.
            drained: Called when the peer has taken all waiting packets.
        """
        self._loop = asyncio.get_running_loop()
        self._received, self._closed, self._drained = received, closed, drained
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)
        if self._waiting:
            self._loop.add_writer(self._socket, self._write)

    @property
    def is_waiting(self) -> bool:
        """Whether messages wait for a peer that does not read."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that the link should not take another socket."""
        return len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    def send(self, message: Message, carried: socket.socket | None = None) -> None:
        """Send a message, now or when the peer reads. Never blocks a link that is served.

        Args:
            message: The message.
            carried: A socket to give to the peer. It is closed here.
        """
        encoded = _ENCODER.encode(message)
        if self._socket.fileno() < 0:
            if carried is not None:
                carried.close()
            return
        for start in range(0, len(encoded), _PACKET_SIZE):
            end = start + _PACKET_SIZE
            self._send_packet((_LAST if end >= len(encoded) else _MORE) + encoded[start:end], None if start else carried)

    def receive_rest(self) -> None:
        """Handle the messages of a peer that has ended."""
        if self._loop is not None and self._socket.fileno() >= 0:
            self._read()

    def close(self) -> None:
        """Close the link, and the sockets that wait for the peer."""
        if self._socket.fileno() < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, carried in self._waiting:
            if carried is not None:
                carried.close()
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._adopted is not None:
            self._adopted.close()

    def _send_packet(self, packet: bytes, carried: socket.socket | None) -> None:
        if self._waiting or not self._try_send(packet, carried):
            if self._loop is not None and not self._waiting:
                self._loop.add_writer(self._socket, self._write)
            self._waiting.append((packet, carried))
            self._waiting_bytes += len(packet)

    def _try_send(self, packet: bytes, carried: socket.socket | None) -> bool:
        """Send a packet. Returns whether the system has taken it; an end of the peer is noticed by reading."""
        try:
            if carried is None:
                self._socket.send(packet)
            else:
                socket.send_fds(self._socket, [packet], [carried.fileno()])
        except BlockingIOError:
            return False
        except OSError as error:
            logger.debug("cannot send to the peer: %s", error)
        if carried is not None:
            carried.close()
        return True

    def _write(self) -> None:
        assert self._loop is not None
        while self._waiting:
            packet, carried = self._waiting[0]
            if not self._try_send(packet, carried):
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(packet)
        self._loop.remove_writer(self._socket)
        if self._drained is not None:
            self._drained()

    def _read(self) -> None:
        for _ in range(_MAX_RECEIVED):
            try:
                taken = self._take_packet()
            except BlockingIOError:
                return
            except (EOFError, OSError):
                self._end()
                return
            if taken is not None:
                assert self._received is not None
                self._received(*taken)
                if self._socket.fileno() < 0:
                    return

    def _end(self) -> None:
        self.close()
        if self._closed is not None:
            self._closed()

    def _take_packet(self) -> tuple[Message, socket.socket | None] | None:
        """Receive a packet. Returns the message if it is complete. Raises `EOFError` if the peer has closed the link."""
        packet, descriptors, _, _ = socket.recv_fds(
            self._socket, _PACKET_SIZE + 1, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        if not packet:
            raise EOFError
        if descriptors:
            self._adopted = socket.socket(fileno=descriptors[0])
        self._parts.append(packet[1:])
        if packet[:1] == _MORE:
            return None
        encoded = b"".join(self._parts)
        self._parts.clear()
        adopted, self._adopted = self._adopted, None
        return _DECODER.decode(encoded), adopted

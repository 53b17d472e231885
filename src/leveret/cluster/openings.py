"""The client's open in the input of a handshake: where it begins, which vhost it names, and what another process must know.

Everything before the open goes to the session, as it arrives. A session that has refused the client, or whose input cannot
be split, gets all further input, because the open will not come, or is an error.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Container
from typing import Final

from leveret.cluster.links import split_address
from leveret.protocols.adoption import TunedClient
from leveret.protocols.amqp091.connection.base import BaseConnection
from leveret.protocols.amqp10.connection.connection import AWAIT_OPEN
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.amqp10.connection.opening import VHOST_PREFIX, vhost_of
from leveret.protocols.vhost_session import VhostSession
from leveret.security.accounts import Account, UserAccount
from leveret.wire.amqp0 import states
from leveret.wire.amqp0.constants import (
    CONNECTION_FORCED,
    FRAME_END,
    FRAME_HEADER_SIZE,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    FRAME_REQUEST,
    FRAME_SIZE_BEFORE_OPEN,
)
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.methods import decode_arguments
from leveret.wire.amqp0.requests import NUMBERS_SIZE
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.composites import read_composite
from leveret.wire.amqp10.decode import Decoder
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.frames import AMQP_FRAME, HEADER_SIZE
from leveret.wire.amqp10.transport import Open
from leveret.wire.amqp10.values import Symbol, Table, UShort

# A frame's type, channel and size.
_FRAME0: Final = struct.Struct(">BHI").unpack_from
_U32: Final = struct.Struct(">I").unpack_from
_OPEN_KEY: Final = 10 << 16 | 40
_KEY_SIZE: Final = 4
# A frame's size, data offset and type, or a protocol header.
_FRAME10: Final = struct.Struct(">IBB").unpack_from
_MAGIC: Final = int.from_bytes(b"AMQP", "big")


class Opening(ABC):
    """The search for the open in the input of one client.

    Attributes:
        session: The session that runs the handshake.
        ends: Whether all further input is the session's.
    """

    def __init__(self, session: VhostSession) -> None:
        self.session = session
        self.ends = False

    @abstractmethod
    def find(self, data: bytes) -> tuple[int, int]:
        """Return where the input for the session ends, and where the frame ends that begins there.

        That frame may be an open. If it is incomplete, both numbers are the same, and the rest of the input must be kept.

        Args:
            data: The input that was kept, and what follows it.
        """

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether the session expects the open."""

    @abstractmethod
    def vhost(self, frame: bytes, vhosts: Container[str]) -> str | None:
        """Return the vhost that the open names; None if the session answers the frame, which need not be a valid open.

        Args:
            frame: The frame.
            vhosts: The existing vhosts, since a name may have two meanings.
        """

    @abstractmethod
    def account(self) -> Account | None:
        """Return the account of the client, which sends the open; None if it should have logged in."""

    @abstractmethod
    def client(self) -> TunedClient | None:
        """Return what the client has negotiated before the open."""

    @abstractmethod
    def redirect(self, frame: bytes, host: str) -> bool:
        """Have the session answer an open by a redirect. Return False if it answers as usual.

        Args:
            frame: The open, for which `vhost` has returned the name of a vhost.
            host: Where the client should connect, as "HOST:PORT".
        """

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Close the connection, because the vhost cannot be opened at the moment."""


class Amqp0Opening(Opening):
    """The search in frames of 0-9-1 and 0-9."""

    def __init__(self, session: BaseConnection) -> None:
        super().__init__(session)
        self.connection = session
        # Missing bytes of a frame whose start is in the session.
        self._missing = 0

    def find(self, data: bytes) -> tuple[int, int]:
        size = len(data)
        pos = min(self._missing, size)
        self._missing -= pos
        while size - pos >= FRAME_HEADER_SIZE:
            type, channel, payload = _FRAME0(data, pos)
            end = pos + payload + FRAME_OVERHEAD
            if channel == 0 and type in (FRAME_METHOD, FRAME_REQUEST) and end - pos <= FRAME_SIZE_BEFORE_OPEN:
                key_at = self._method_at(type, pos)
                if key_at + _KEY_SIZE > min(size, end):
                    if end > size:
                        return pos, pos
                elif _U32(data, key_at)[0] == _OPEN_KEY:
                    if end > size:
                        return pos, pos
                    if data[end - 1] == FRAME_END:
                        return pos, end
            if end > size:
                self._missing = end - size
                return size, size
            pos = end
        return pos, pos

    def _method_at(self, type: int, pos: int) -> int:
        return pos + FRAME_HEADER_SIZE + (NUMBERS_SIZE if type == FRAME_REQUEST else 0)

    def is_due(self) -> bool:
        return self.connection.engine.state == states.OPEN

    def vhost(self, frame: bytes, vhosts: Container[str]) -> str | None:
        try:
            arguments = self._arguments(frame)
        except WireError:
            return None
        return self.connection.handshake.vhost_of(arguments, vhosts) or None

    def _arguments(self, frame: bytes) -> Arguments:
        """Return the arguments of an open. Raises `WireError`."""
        engine = self.connection.engine
        at = self._method_at(frame[0], 0) + _KEY_SIZE
        return decode_arguments(engine.version.methods[_OPEN_KEY], frame, at, len(frame) - 1, engine.dialect)

    def redirect(self, frame: bytes, host: str) -> bool:
        return self.connection.handshake.redirect(self._arguments(frame), host)

    def account(self) -> Account | None:
        account: Account = self.connection.account
        return account

    def client(self) -> TunedClient:
        engine = self.connection.engine
        properties = self.connection.handshake.encoded_properties()
        return TunedClient(properties, engine.frame_max, engine.channel_max, engine.heartbeat)

    def refuse(self, reason: str) -> None:
        self.connection.close(CONNECTION_FORCED, reason)


class Amqp10Opening(Opening):
    """The search in protocol headers, SASL frames and AMQP frames of 1.0."""

    def __init__(self, session: Connection10) -> None:
        super().__init__(session)
        self.connection = session
        # The host name in the client's open.
        self._hostname = ""

    def find(self, data: bytes) -> tuple[int, int]:
        size = len(data)
        pos = 0
        while size - pos >= HEADER_SIZE:
            length, offset, type = _FRAME10(data, pos)
            if length == _MAGIC:
                pos += HEADER_SIZE
                continue
            if not HEADER_SIZE <= length <= self.connection.reader.first_frame_size:
                self.ends = True
                return size, size
            if pos + length > size:
                break
            if type == AMQP_FRAME and offset << 2 < length:
                return pos, pos + length
            pos += length
        return pos, pos

    def is_due(self) -> bool:
        return self.connection.state == AWAIT_OPEN

    def vhost(self, frame: bytes, vhosts: Container[str]) -> str | None:
        decoder = Decoder(frame, frame[4] << 2, len(frame), self.connection.reader.max_values)
        try:
            opened = read_composite(decoder)
        except DecodeError:
            return None
        if not isinstance(opened, Open) or decoder.pos != len(frame):
            return None
        self._hostname = opened.hostname or ""
        return vhost_of(opened, vhosts)

    def account(self) -> Account | None:
        connection = self.connection
        if connection.account is not None:
            account: Account = connection.account
            return account
        name = connection.anonymous_user()
        return None if name is None else UserAccount(name, connection.users)

    def client(self) -> None:
        return None

    def redirect(self, frame: bytes, host: str) -> bool:
        if not self.connection.shared.settings.redirect:
            return False
        network_host, port = split_address(host)
        # Clients send the host name again, which says which vhost they open.
        hostname = self._hostname if self._hostname.startswith(VHOST_PREFIX) else network_host
        info: Table = {
            Symbol("hostname"): hostname,
            Symbol("network-host"): network_host,
            Symbol("port"): UShort(port),
        }
        self.connection.close(constants.CONNECTION_REDIRECT, f"node {host} has the vhost", info)
        return True

    def refuse(self, reason: str) -> None:
        self.connection.close(constants.CONNECTION_FORCED, reason)

"""A connection of AMQP 1.0: its sessions, and recovery after the socket was lost."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.addresses import Addresses, choose
from leveret.client.engine.amqp10.conditions import RETRYABLE_CONDITIONS, connection_error, protocol_error
from leveret.client.engine.amqp10.connection.engine import Engine
from leveret.client.engine.amqp10.connection.handshake import handshake
from leveret.client.engine.amqp10.connection.recovery import recover
from leveret.client.engine.amqp10.management.management import Management
from leveret.client.engine.amqp10.session.session import SessionCore
from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.connection import CLOSED, LOST, OPENED, OPENING, RECOVERING, BaseConnectionCore
from leveret.client.engine.common.frontend import FrontEnd, Procedure, Waiter
from leveret.client.engine.common.results import Result
from leveret.client.errors import ConnectionClosed, Error, ProtocolMismatch, no_amqp_server
from leveret.client.parameters import Parameters
from leveret.wire.amqp10 import constants, descriptors, frames
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.frames import Failure
from leveret.wire.amqp10.transport import Begin, Close, Open
from leveret.wire.amqp10.transport import Error as Condition

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.session.wire_session import WireSession

# Maximum number of frames that a server may send before the client expects them: more than those of a whole handshake.
MAX_UNCLAIMED: Final = 16


class Amqp10ConnectionCore(BaseConnectionCore):
    """A connection of AMQP 1.0.

    Attributes:
        addresses: Address format of queues and exchanges.
        container_id: Identity of the client; constant over all sockets, so that links are resumed.
        unflushed: Sessions with outcomes that are not written yet.
        offered: Capabilities that the server offers.
    """

    engine: Engine

    def __init__(self, frontend: FrontEnd, parameters: Parameters) -> None:
        super().__init__(frontend, parameters)
        self.engine = Engine(parameters)
        self.channels: dict[int, SessionCore] = {}
        self.addresses = Addresses("v2")
        self.container_id = parameters.container_id or f"leveret-{uuid.uuid4().hex[:12]}"
        self.unflushed: list[WireSession] = []
        self.offered: tuple[str, ...] = ()
        self.management = Management(self)
        self._remote: dict[int, SessionCore] = {}
        self._headers = 0
        self._first_bytes = b""
        # Frames that arrived before a caller waited for them, because the server may send several at once.
        self._unclaimed: deque[Result] = deque()
        self._lowest_free = 0

    @property
    def heartbeat_timeout(self) -> float:
        return self.engine.heartbeat_timeout

    def _all_channels(self) -> Sequence[BaseChannelCore]:
        return list(self.channels.values())

    def _forget_channels(self) -> None:
        self.channels.clear()
        self._remote.clear()

    # Opening

    def handshake(self, parameters: Parameters) -> Procedure:
        self._begin(parameters)
        self.engine = Engine(parameters)
        self.unflushed.clear()
        self._remote.clear()
        self._headers = 0
        self._first_bytes = b""
        self._unclaimed.clear()
        yield from handshake(self)
        self._change_state(OPENING, RECOVERING)

    def recover(self) -> Procedure:
        return recover(self)

    def expect(self) -> Waiter:
        waiter = super().expect()
        if self._unclaimed:
            self._resolve_next(self._unclaimed.popleft())
        return waiter

    def _resolve_next(self, result: Result) -> None:
        if self._awaited:
            super()._resolve_next(result)
        elif len(self._unclaimed) < MAX_UNCLAIMED:
            self._unclaimed.append(result)
        elif self.state not in (LOST, CLOSED):
            self.fail(protocol_error(constants.NOT_ALLOWED, "the server sent frames that the client did not ask for"))

    def send_protocol_header(self, protocol: int) -> None:
        """Send a protocol header."""
        self.engine.send_header(protocol)
        self.frontend.flush_soon()

    def send(self, frame: Performative) -> None:
        """Send a performative."""
        self.engine.send(frame)
        self.frontend.flush_soon()

    def agree(self, theirs: Open) -> None:
        """Apply the server's open."""
        self.engine.agree(theirs)
        self.offered = theirs.offered_capabilities
        properties = theirs.properties if isinstance(theirs.properties, dict) else {}
        self.server_properties = {str(key): value for key, value in properties.items()}
        self.addresses.adopt(choose(self.parameters.addresses, self.server_properties))

    # Input and output

    def to_send(self) -> bytes:
        """Return the output, including outcomes that are not flushed yet."""
        if self.unflushed:
            sessions, self.unflushed = self.unflushed, []
            for session in sessions:
                session.flush_settled()
        return self.engine.to_send()

    def receive(self, data: bytes) -> None:
        """Process data from the socket."""
        if self.state == OPENING and len(self._first_bytes) < 8:
            self._first_bytes += data[: 8 - len(self._first_bytes)]
        remote = self._remote
        for frame in self.engine.receive(data):
            kind = frame.kind
            if descriptors.ATTACH <= kind <= descriptors.END:
                session = remote.get(frame.channel)
                if session is not None:
                    session.receive(frame)
            elif kind == descriptors.BEGIN:
                assert isinstance(frame, Begin)
                self._began(frame)
            elif kind == descriptors.CLOSE:
                assert isinstance(frame, Close)
                self._closed(frame)
            elif kind == frames.FAILURE:
                assert isinstance(frame, Failure)
                self._failed(frame)
            elif kind != frames.EMPTY:
                if kind == frames.HEADER:
                    self._headers += 1
                self._resolve_next(frame)
        if self.engine.pending:
            # Messages that waited for credit.
            self.frontend.flush_soon()
        self._check_buffer()

    def _began(self, frame: Begin) -> None:
        if frame.remote_channel is None:
            # The client does not accept sessions that the server begins.
            self.fail(protocol_error(constants.NOT_ALLOWED, "the server began a session"))
            return
        begun = self.channels.get(frame.remote_channel)
        if begun is not None:
            self._remote[frame.channel] = begun
            begun.began(frame)

    def _closed(self, frame: Close) -> None:
        if self.is_closed:
            self._resolve_next(frame)
            return
        error = connection_error(frame.error)
        self.send(Close())
        self.engine.forbid_close()
        self.frontend.close_socket()
        self.lost(error, error.condition in RETRYABLE_CONDITIONS)

    def _failed(self, failure: Failure) -> None:
        if self.state == OPENING and not self._headers:
            self.mismatch(no_amqp_server(self._first_bytes, self.parameters.host, self.parameters.port))
            return
        self.fail(protocol_error(failure.condition, failure.text))

    def mismatch(self, error: ProtocolMismatch) -> None:
        """Close the socket of a server that speaks another protocol."""
        self.lost(error)
        self.frontend.close_socket()

    # Closing

    def fail(self, error: Error) -> None:
        """Close the connection because the server broke the protocol."""
        if self.engine.can_close:
            self.send(Close(Condition(error.condition or constants.INTERNAL_ERROR, error.reply_text or None)))
        self.frontend.close_socket()
        self.lost(error, False)

    def close(self) -> Procedure:
        error = ConnectionClosed("the connection was closed by the application")
        usable = self.state == OPENED and self.engine.can_close
        if usable:
            for channel in list(self.channels.values()):
                channel.flush_settled()
            self.send(Close())
        self.end(error, by_application=True)
        if usable:
            yield self._await_next()
        self.frontend.close_socket()

    # Sessions

    def new_channel(self, confirms: bool, transactional: bool, internal: bool = False) -> SessionCore:
        """Return a session with the lowest free number; `SessionCore.open` begins it."""
        number = self._lowest_free
        while number in self.channels:
            number += 1
        self._lowest_free = number
        if number > self.engine.channel_max:
            raise ConnectionClosed(
                f"all {self.engine.channel_max + 1} sessions of the connection are open; expected fewer,"
                " or a larger channel_max"
            )
        session = self.channels[number] = SessionCore(self, number, confirms, transactional, internal)
        return session

    def forget_session(self, session: WireSession) -> None:
        """Free the number of a session."""
        number = session.number
        if self.channels.get(number) is session:
            del self.channels[number]
            self._lowest_free = min(self._lowest_free, number)
        for remote, other in list(self._remote.items()):
            if other is session:
                del self._remote[remote]

    def _expecting(self) -> bool:
        return self.management.expecting or super()._expecting()

    def update_secret(self, secret: str, reason: str) -> Waiter:
        """Send the server a new token (RabbitMQ's `PUT /auth/tokens`)."""
        return self.management.request(
            "PUT", "/auth/tokens", secret.encode(), lambda status, body, abandoned: None, "connection.update-secret"
        )

"""A connection of AMQP 0-9-1: handshake, channels, and recovery after the socket was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.amqp091.handshake import handshake
from leveret.client.engine.amqp091.recovery import recover
from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.connection import OPENED, OPENING, RECOVERING, BaseConnectionCore
from leveret.client.engine.common.frontend import FrontEnd, Procedure, Waiter
from leveret.client.errors import (
    ConnectionClosed,
    Error,
    ProtocolMismatch,
    closed_error,
    no_amqp_server,
    protocol_error,
)
from leveret.client.events import Blocked, Unblocked
from leveret.client.parameters import Parameters
from leveret.wire.amqp0.commands import (
    ACK,
    CHANNEL_SCOPE,
    CONTENT_METHOD,
    DELIVER,
    ERROR,
    METHOD,
    NACK,
    Ack,
    Command,
    ContentMethod,
    Deliver,
    Method,
    Nack,
)
from leveret.wire.amqp0.commands import Error as WireError
from leveret.wire.amqp0.constants import CLIENT, CONNECTION_FORCED, INTERNAL_ERROR
from leveret.wire.amqp0.engine import Engine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.table_amqp091 import V0_9_1
from leveret.wire.amqp0.values import Arguments

# Reply codes of a server that shuts down or has failed, after which a reconnect may succeed. Any other code is an error of
# the client that a reconnect would repeat.
_RETRYABLE_CODES: Final = (CONNECTION_FORCED, INTERNAL_ERROR)


# First bytes of a server that errors tell apart: AMQP, HTTP and TLS.
_KNOWN: Final = (b"AMQP", b"HTTP/", b"\x15\x03", b"\x16\x03")
# Names of the versions in protocol headers.
_PROTOCOLS: Final = {
    b"\0\0\x09\x01": "0-9-1",
    b"\1\1\0\x09": "0-9",
    b"\0\1\0\0": "1.0",
    b"\2\1\0\0": "1.0 with TLS",
    b"\3\1\0\0": "1.0 with SASL",
}


class ConnectionCore(BaseConnectionCore):
    """A connection of AMQP 0-9-1, and the base of the one for AMQP 0-9.

    Attributes:
        header: The protocol header that the client sends.
        version: The protocol version and its table of methods.
        channel_class: Class of the channels.
    """

    engine: Engine
    header: ClassVar[bytes] = b"AMQP\x00\x00\x09\x01"
    version: ClassVar[Version] = V0_9_1
    channel_class: ClassVar[type[ChannelCore]] = ChannelCore

    def __init__(self, frontend: FrontEnd, parameters: Parameters) -> None:
        super().__init__(frontend, parameters)
        self.engine = self._new_engine(parameters)
        self.channels: dict[int, ChannelCore] = {}
        self._first_bytes = b""
        self._unsent_header = b""

    def _new_engine(self, parameters: Parameters) -> Engine:
        return Engine(
            CLIENT,
            self.version,
            frame_max=parameters.frame_max or 131072,
            channel_max=parameters.channel_max or 65535,
            heartbeat=parameters.heartbeat or 0,
            max_body_size=parameters.max_message_size,
            spool_threshold=1 << 62,
        )

    @property
    def heartbeat_timeout(self) -> float:
        return 2 * self.engine.heartbeat

    def _all_channels(self) -> Sequence[BaseChannelCore]:
        return list(self.channels.values())

    def _forget_channels(self) -> None:
        self.channels.clear()

    # Opening

    def handshake(self, parameters: Parameters) -> Procedure:
        self._begin(parameters)
        self.engine = self._new_engine(parameters)
        self._first_bytes = b""
        self._unsent_header = self.header
        self.frontend.flush_soon()
        yield from handshake(self)
        self._change_state(OPENING, RECOVERING)

    def recover(self) -> Procedure:
        return recover(self)

    def send(self, name: str, arguments: Arguments | None = None) -> None:
        """Send a method of class connection."""
        self.engine.send(0, name, arguments)
        self.frontend.flush_soon()

    # Input and output

    def to_send(self) -> bytes:
        """Return and clear the output."""
        data = self.engine.to_send()
        if self._unsent_header:
            data, self._unsent_header = self._unsent_header + data, b""
        return data

    def receive(self, data: bytes) -> None:
        """Process data from the socket."""
        if len(self._first_bytes) < 8 and self.state == OPENING:
            self._first_bytes += data[: 8 - len(self._first_bytes)]
            if self._first_bytes[0] not in (1, 8):
                self._mismatch()
                return
        channels = self.channels
        for command in self.engine.receive(data):
            kind = command.kind
            channel = channels.get(command.channel)
            if kind == DELIVER:
                if channel is not None:
                    assert isinstance(command, Deliver)
                    channel.delivered(command)
            elif kind == ACK:
                if channel is not None:
                    assert isinstance(command, Ack)
                    channel.pending_confirms.confirm(command.delivery_tag, command.multiple, True)
            else:
                self._dispatch_other(command, channel)
        self._check_buffer()

    def _dispatch_other(self, command: Command, channel: ChannelCore | None) -> None:
        kind = command.kind
        if kind == NACK:
            assert isinstance(command, Nack)
            if channel is not None:
                channel.pending_confirms.confirm(command.delivery_tag, command.multiple, False)
        elif kind == METHOD:
            assert isinstance(command, Method)
            if command.channel == 0:
                self._connection_method(command)
            elif channel is not None:
                channel.method(command)
        elif kind == CONTENT_METHOD:
            assert isinstance(command, ContentMethod)
            if channel is not None:
                channel.content(command)
        elif kind == ERROR:
            assert isinstance(command, WireError)
            if command.scope == CHANNEL_SCOPE:
                if channel is not None:
                    channel.fail(command)
                return
            self.fail(protocol_error(command.code, command.text, command.class_id, command.method_id))

    def _mismatch(self) -> None:
        first = self._first_bytes
        host, port = self.parameters.host, self.parameters.port
        if any(known.startswith(first) and known != first for known in _KNOWN):
            return
        if first.startswith(b"AMQP"):
            if len(first) < 8:
                return
            text = (
                f"the server refused AMQP {self.version.name} with the protocol header of AMQP"
                f" {_PROTOCOLS.get(first[4:], f'{first[5]}-{first[6]}-{first[7]}')}"
            )
            speaks_amqp10 = first[5:8] == b"\1\0\0"
            if speaks_amqp10:
                text += '; expected a connection with protocol="1.0"'
            error = ProtocolMismatch(text, host=host, port=port)
            if speaks_amqp10:
                error.speaks = "1.0"
        else:
            error = no_amqp_server(first, host, port)
        self.lost(error)
        self.frontend.close_socket()

    def _connection_method(self, command: Method) -> None:
        name = command.name
        arguments = command.arguments
        if name == "connection.close":
            error = closed_error(
                arguments["reply_code"],
                arguments["reply_text"],
                arguments["class_id"],
                arguments["method_id"],
                channel=False,
            )
            self.send("connection.close-ok")
            self.frontend.close_socket()
            self.lost(error, arguments["reply_code"] in _RETRYABLE_CODES)
        elif name == "connection.blocked":
            self.blocked = arguments["reason"] or "no reason given"
            self._update_flow()
            self.frontend.emit(Blocked(self.blocked))
        elif name == "connection.unblocked":
            self.blocked = ""
            self._update_flow()
            self.frontend.emit(Unblocked())
        else:
            self._resolve_next(command)

    # Closing

    def fail(self, error: Error) -> None:
        """Close the connection because the server broke the protocol."""
        if self.engine.can_close:
            self.send("connection.close", {"reply_code": error.reply_code, "reply_text": error.reply_text})
        self.frontend.close_socket()
        self.lost(error, False)

    def close(self) -> Procedure:
        error = ConnectionClosed("the connection was closed by the application")
        usable = self.state == OPENED and self.engine.can_close
        if usable:
            self.send("connection.close", {"reply_code": 200, "reply_text": "closed by the application"})
        self.end(error, by_application=True)
        if usable:
            yield self._await_next()
        self.frontend.close_socket()

    # Channels

    def new_channel(self, confirms: bool, transactional: bool) -> ChannelCore:
        """Return a channel with the lowest free number; `ChannelCore.open` opens it."""
        number = self._lowest_free
        while number in self.channels:
            number += 1
        self._lowest_free = number
        if number > self.engine.channel_max:
            raise ConnectionClosed(
                f"all {self.engine.channel_max} channels of the connection are open; expected fewer, or"
                " a larger channel_max"
            )
        channel = self.channels[number] = self.channel_class(self, number, confirms, transactional)
        return channel

    @property
    def is_full(self) -> bool:
        """Whether all channel numbers are in use."""
        return len(self.channels) >= self.engine.channel_max

    def forget_channel(self, channel: ChannelCore) -> None:
        """Free the number of a channel."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._lowest_free = min(self._lowest_free, channel.number)

    def update_secret(self, secret: str, reason: str) -> Waiter:
        """Send the server a new secret (RabbitMQ's `connection.update-secret`)."""
        self.send("connection.update-secret", {"new_secret": secret, "reason": reason})
        return self.expect()

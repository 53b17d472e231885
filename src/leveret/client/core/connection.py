"""A connection of the client: its handshake, its channels, and what remains of it when the socket is lost."""

from __future__ import annotations

import uuid
from collections import deque
from typing import Any, Final

from leveret.client.core.channel import ChannelCore
from leveret.client.core.handshake import handshake
from leveret.client.core.host import Host, Procedure, Waiter
from leveret.client.core.topology import Topology
from leveret.client.core.waiters import Waiters
from leveret.client.errors import (
    ConnectionClosed,
    ConnectionLost,
    Error,
    ProtocolMismatch,
    anew,
    breach_error,
    closed_error,
)
from leveret.client.events import Blocked, Closed, Disconnected, Unblocked
from leveret.client.parameters import Parameters
from leveret.wire.amqp0.commands import (
    ACK,
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
from leveret.wire.amqp0.table_0_9_1 import V0_9_1

HEADER: Final = b"AMQP\x00\x00\x09\x01"

# The states of a connection. It is LOST while it is to be connected again.
NEW: Final = 0
OPENING: Final = 1
RECOVERING: Final = 2
OPENED: Final = 3
LOST: Final = 4
CLOSED: Final = 5

# The octets of messages that no prefetch limits and nobody takes: reading stops above, and goes on below.
BUFFER_HIGH: Final = 32 << 20
BUFFER_LOW: Final = 8 << 20
# What a message that waits costs beside its body.
MESSAGE_OVERHEAD: Final = 512

# What a server says when it stops or has failed: worth to connect again. Every other code is a mistake of ours, which
# would be made again.
_WORTH_A_RETRY: Final = (CONNECTION_FORCED, INTERNAL_ERROR)


class ConnectionCore:
    """One connection of the application's, over one socket after the other.

    generation   counts the sockets
    flowing      channels may publish, as far as the connection is concerned
    blocked      the server's reason not to take publishes, "" while it takes them
    last_error   why the socket was lost, or the connection closed
    ended_by     why it is closed for good, None while it is not and when the application closed it
    paused       nothing is read, as too much waits to be taken
    locked       how often in a row it was not recovered as the server still had its exclusive queues locked
    """

    def __init__(self, host: Host, parameters: Parameters) -> None:
        self.host = host
        self.parameters = parameters
        self.engine = self._new_engine(parameters)
        self.state = NEW
        self.generation = 0
        self.flowing = False
        self.blocked = ""
        self.last_error: Error = ConnectionLost("the connection is not open yet")
        self.ended_by: Error | None = None
        self.locked = 0
        self.server_properties: dict[str, Any] = {}
        self.topology = Topology()
        self.channels: dict[int, ChannelCore] = {}
        self._ready = Waiters(host)
        self._full = False
        self._buffered = 0
        self.paused = False
        # Those who wait for a method of class connection, in order.
        self._awaited: deque[Waiter] = deque()
        # No channel number below it is free.
        self._free_from = 1
        self._prefix = f"leveret.{uuid.uuid4().hex[:12]}"
        self._names = 0
        self._first = b""
        self._greeting = b""

    @staticmethod
    def _new_engine(parameters: Parameters) -> Engine:
        return Engine(CLIENT, V0_9_1, frame_max=parameters.frame_max or 131072, channel_max=parameters.channel_max or 65535,
                      heartbeat=parameters.heartbeat or 0, max_body_size=1 << 62, spool_threshold=1 << 62)

    @property
    def opened(self) -> bool:
        return self.state == OPENED

    @property
    def is_lost(self) -> bool:
        """It is to be connected again."""
        return self.state == LOST

    @property
    def is_closed(self) -> bool:
        """For good."""
        return self.state == CLOSED

    # Opening

    def connected(self, parameters: Parameters) -> Procedure:
        """Procedure: a socket is there; the handshake with this server. Raises what the server refuses."""
        self.parameters = parameters
        self.engine = self._new_engine(parameters)
        self.generation += 1
        self.state = OPENING
        self._first = b""
        self._greeting = HEADER
        self.blocked = ""
        self.paused = self._full = False
        self.host.flush_soon()
        yield from handshake(self)
        self._go_on(OPENING, RECOVERING)

    def ready(self) -> None:
        """Everything is as it was: publishes and calls go on. Raises the error of a socket that was lost before."""
        self._go_on(RECOVERING, OPENED)
        self.locked = 0
        self._update_flow()
        self._ready.wake()

    def _go_on(self, before: int, after: int) -> None:
        """The socket may be lost when the last answer has come and before who waited for it goes on."""
        if self.state != before:
            raise self.last_error.with_traceback(None)
        self.state = after

    def until_ready(self) -> Waiter:
        """Until the connection is open. Raises the error of one that is closed for good."""
        if self.is_closed:
            raise anew(self.last_error)
        return self._ready.new()

    def why_closed(self) -> Error:
        return self.last_error

    def expect(self) -> Waiter:
        """The next method of class connection. Raises the error of a connection that has ended."""
        if self.state in (LOST, CLOSED):
            raise anew(self.last_error)
        return self._await_method()

    def _await_method(self) -> Waiter:
        waiter: Waiter = self.host.new_waiter()
        self._awaited.append(waiter)
        self.listen()
        return waiter

    def send(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """A method of class connection."""
        self.engine.send(0, name, arguments)
        self.host.flush_soon()

    # Octets

    def to_send(self) -> bytes:
        data = self.engine.to_send()
        if self._greeting:
            data, self._greeting = self._greeting + data, b""
        return data

    def receive(self, data: bytes) -> None:
        """Take what the socket gave."""
        if len(self._first) < 8 and self.state == OPENING:
            self._first += data[: 8 - len(self._first)]
            if self._first[0] not in (1, 8):
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
                    channel.unconfirmed.confirm(command.delivery_tag, command.multiple, True)
            else:
                self._rare(command, channel)
        if self._buffered > BUFFER_HIGH and not self.paused and not self._expecting():
            self.paused = True
            self.host.pause_reading()

    def _rare(self, command: Command, channel: ChannelCore | None) -> None:
        kind = command.kind
        if kind == NACK:
            assert isinstance(command, Nack)
            if channel is not None:
                channel.unconfirmed.confirm(command.delivery_tag, command.multiple, False)
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
            self.fail(breach_error(command.code, command.text, command.class_id, command.method_id))

    def _mismatch(self) -> None:
        first = self._first
        if b"AMQP".startswith(first[:4]) or first.startswith(b"AMQP"):
            if len(first) < 8:
                return
            text = f"the server speaks AMQP {first[5]}-{first[6]}-{first[7]} instead of 0-9-1 (it answered {first!r})"
        else:
            text = f"the server does not speak AMQP: it answered {first!r}; is it another port's, or one for TLS (amqps://)?"
        self.lost(ProtocolMismatch(text, host=self.parameters.host, port=self.parameters.port))
        self.host.hang_up()

    def _connection_method(self, command: Method) -> None:
        name = command.name
        arguments = command.arguments
        if name == "connection.close":
            error = closed_error(arguments["reply_code"], arguments["reply_text"], arguments["class_id"],
                                 arguments["method_id"], channel=False)
            self.send("connection.close-ok")
            self.host.hang_up()
            self.lost(error, arguments["reply_code"] in _WORTH_A_RETRY)
        elif name == "connection.blocked":
            self.blocked = arguments["reason"] or "no reason given"
            self._update_flow()
            self.host.emit(Blocked(self.blocked))
        elif name == "connection.unblocked":
            self.blocked = ""
            self._update_flow()
            self.host.emit(Unblocked())
        elif self._awaited:
            awaited = self._awaited.popleft()
            if not awaited.done():
                awaited.set_result(command)

    # The end

    def fail(self, error: Error) -> None:
        """The server broke the protocol: tell it, and give up."""
        if self.engine.can_close:
            self.send("connection.close", {"reply_code": error.reply_code, "reply_text": error.reply_text})
        self.host.hang_up()
        self.lost(error, False)

    def lost(self, error: Error, recoverable: bool = True) -> None:
        """The socket is gone, or about to be. Everything that waits learns of it now."""
        self._fail_awaited(error)
        before = self.state
        if before in (CLOSED, LOST, NEW):
            return
        self.last_error = anew(error)
        self.flowing = False
        if ((before == OPENED and not (recoverable and self.parameters.reconnect))
                or (before == RECOVERING and not recoverable)):
            self.end(error)
            return
        self.state = LOST
        for channel in list(self.channels.values()):
            channel.lost(error, True)
        if before == OPENED:
            self.host.emit(Disconnected(error))
            self.host.reconnect()

    def end(self, error: Error, by_application: bool = False) -> None:
        """Closed for good: by the application, by the server, or because it cannot be connected again."""
        if self.state == CLOSED:
            return
        self._fail_awaited(error)
        self.state = CLOSED
        self.last_error = anew(error)
        self.flowing = False
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.lost(error, False)
        self._ready.wake(error)
        self.ended_by = None if by_application else self.last_error
        self.host.emit(Closed(self.ended_by))

    def _fail_awaited(self, error: Error) -> None:
        awaited, self._awaited = self._awaited, deque()
        for waiter in awaited:
            if not waiter.done():
                waiter.set_exception(error)

    def close(self) -> Procedure:
        """Procedure: close it in order; nothing is awaited where there is no connection."""
        error = ConnectionClosed("the connection was closed by the application")
        usable = self.state == OPENED and self.engine.can_close
        if usable:
            self.send("connection.close", {"reply_code": 200, "reply_text": "closed by the application"})
        self.end(error, by_application=True)
        if usable:
            yield self._await_method()
        self.host.hang_up()

    # Channels

    def new_channel(self, confirms: bool, transactional: bool) -> ChannelCore:
        """A channel with the lowest number that is free; `ChannelCore.open` opens it."""
        number = self._free_from
        while number in self.channels:
            number += 1
        self._free_from = number
        if number > self.engine.channel_max:
            raise ConnectionClosed(f"the connection has {self.engine.channel_max} channels open, as many as were agreed"
                                   " (channel_max)")
        channel = self.channels[number] = ChannelCore(self, number, confirms, transactional)
        return channel

    @property
    def is_full(self) -> bool:
        """There are as many channels as were agreed."""
        return len(self.channels) >= self.engine.channel_max

    def forget_channel(self, channel: ChannelCore) -> None:
        """Its number may be used again."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._free_from = min(self._free_from, channel.number)

    def new_name(self) -> str:
        """A consumer tag or a correlation id: ours, so that it is known before the server has answered."""
        self._names += 1
        return f"{self._prefix}.{self._names}"

    def unused(self, queue: str) -> None:
        """A consumer of the queue has ended. The server deletes an auto-delete queue with its last one: it is not to be
        there again, nor to be remembered."""
        declared = self.topology.queues.get(queue)
        if declared is not None and declared.arguments["auto_delete"] and not any(
                consumer.queue == queue for channel in self.channels.values() for consumer in channel.consumers.values()):
            self.topology.remove_queue(queue)

    # Flow

    def socket_full(self, full: bool) -> None:
        """The socket takes nothing more for now."""
        self._full = full
        self._update_flow()

    @property
    def socket_is_full(self) -> bool:
        return self._full

    def _update_flow(self) -> None:
        self.flowing = self.state == OPENED and not self.blocked and not self._full
        for channel in list(self.channels.values()):
            channel.update_flow()

    def buffered(self, size: int) -> None:
        """A message waits that no prefetch limits."""
        self._buffered += size + MESSAGE_OVERHEAD

    def taken(self, size: int) -> None:
        """The application has taken it."""
        self._buffered -= size + MESSAGE_OVERHEAD
        if self.paused and self._buffered < BUFFER_LOW:
            self._resume()

    def _expecting(self) -> bool:
        """Somebody waits for the server: what is awaited comes behind the messages, so that they are read, however many
        there are."""
        return bool(self._awaited) or any(channel.expecting for channel in self.channels.values())

    def listen(self) -> None:
        """Somebody begins to wait for the server."""
        if self.paused:
            self._resume()

    def _resume(self) -> None:
        self.paused = False
        self.host.resume_reading()

    @property
    def reading_paused(self) -> bool:
        """It is not the server's silence when we do not listen."""
        return self.paused


def describe(connection: ConnectionCore) -> str:
    """Its repr, without the password."""
    parameters = connection.parameters
    state = "open" if connection.opened else "closed" if connection.is_closed else "not connected"
    return f"<Connection to {parameters.host}:{parameters.port}, vhost {parameters.vhost!r}: {state}>"



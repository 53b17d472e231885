"""What connections of all protocols have in common: their states, who waits for them, and what happens at the end."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from leveret.client.core.frontend import FrontEnd, Procedure, Waiter
from leveret.client.core.topology import Topology
from leveret.client.core.waiters import Waiters
from leveret.client.errors import ConnectionLost, Error, copy_error
from leveret.client.events import Closed, Disconnected
from leveret.client.parameters import Parameters

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


class AnyChannel(Protocol):
    """What a connection asks of its channels."""

    @property
    def number(self) -> int: ...

    @property
    def expecting(self) -> bool: ...

    @property
    def consumers(self) -> Mapping[Any, Any]: ...

    def lost(self, error: Error, recoverable: bool) -> None: ...

    def update_flow(self) -> None: ...


class BaseConnection(ABC):
    """One connection of the application's, over one socket after the other.

    generation   counts the sockets
    flowing      channels may publish, as far as the connection is concerned
    blocked      the server's reason not to take publishes, "" while it takes them
    last_error   why the socket was lost, or the connection closed
    close_error     why it is closed for good, None while it is not and when the application closed it
    paused       nothing is read, as too much waits to be taken
    locked       how often in a row it was not recovered as the server still had its exclusive queues locked
    """

    def __init__(self, frontend: FrontEnd, parameters: Parameters) -> None:
        self.frontend = frontend
        self.parameters = parameters
        self.state = NEW
        self.generation = 0
        self.flowing = False
        self.blocked = ""
        self.last_error: Error = ConnectionLost("the connection is not open yet")
        self.close_error: Error | None = None
        self.locked_attempts = 0
        self.server_properties: dict[str, Any] = {}
        self.topology = Topology()
        self._ready = Waiters(frontend)
        self._full = False
        self._buffered = 0
        self.paused = False
        # Those who wait for the next thing that the server says of the connection itself, in order.
        self._awaited: deque[Waiter] = deque()
        # No channel number below it is free.
        self._free_from = 1
        self._prefix = f"leveret.{uuid.uuid4().hex[:12]}"
        self._names = 0

    @property
    @abstractmethod
    def heartbeat_timeout(self) -> float:
        """After how many seconds without a word the server is given up, 0 for never."""

    @abstractmethod
    def connected(self, parameters: Parameters) -> Procedure:
        """Procedure: a socket is there; the handshake with this server. Raises what the server refuses."""

    @abstractmethod
    def recover(self) -> Procedure:
        """Procedure, after the handshake: make everything as it was."""

    @abstractmethod
    def close(self) -> Procedure:
        """Procedure: close it in order; nothing is awaited where there is no connection."""

    @abstractmethod
    def _all_channels(self) -> list[AnyChannel]: ...

    @abstractmethod
    def _forget_channels(self) -> None: ...

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

    def _begin(self, parameters: Parameters) -> None:
        """Another socket."""
        self.parameters = parameters
        self.generation += 1
        self.state = OPENING
        self.blocked = ""
        self.paused = self._full = False

    def ready(self) -> None:
        """Everything is as it was: publishes and calls go on. Raises the error of a socket that was lost before."""
        self._change_state(RECOVERING, OPENED)
        self.locked_attempts = 0
        self._update_flow()
        self._ready.wake()

    def _change_state(self, before: int, after: int) -> None:
        """The socket may be lost when the last answer has come and before who waited for it goes on."""
        if self.state != before:
            raise self.last_error.with_traceback(None)
        self.state = after

    def ready_waiter(self) -> Waiter:
        """Until the connection is open. Raises the error of one that is closed for good."""
        if self.is_closed:
            raise copy_error(self.last_error)
        return self._ready.new()

    def not_open_error(self) -> Error:
        return self.last_error

    def expect(self) -> Waiter:
        """The next that the server says of the connection itself. Raises the error of a connection that has ended."""
        if self.state in (LOST, CLOSED):
            raise copy_error(self.last_error)
        return self._await_next()

    def _await_next(self) -> Waiter:
        waiter: Waiter = self.frontend.new_waiter()
        self._awaited.append(waiter)
        self.ensure_reading()
        return waiter

    def _resolve_next(self, what: Any) -> None:
        """Tell the first of those who wait."""
        if self._awaited:
            awaited = self._awaited.popleft()
            if not awaited.done():
                awaited.set_result(what)

    # The end

    def lost(self, error: Error, recoverable: bool = True) -> None:
        """The socket is gone, or about to be. Everything that waits learns of it now."""
        self._fail_awaited(error)
        before = self.state
        if before in (CLOSED, LOST, NEW):
            return
        self.last_error = copy_error(error)
        self.flowing = False
        if ((before == OPENED and not (recoverable and self.parameters.reconnect))
                or (before == RECOVERING and not recoverable)):
            self.end(error)
            return
        self.state = LOST
        for channel in self._all_channels():
            channel.lost(error, True)
        if before == OPENED:
            self.frontend.emit(Disconnected(error))
            self.frontend.reconnect()

    def end(self, error: Error, by_application: bool = False) -> None:
        """Closed for good: by the application, by the server, or because it cannot be connected again."""
        if self.state == CLOSED:
            return
        self._fail_awaited(error)
        self.state = CLOSED
        self.last_error = copy_error(error)
        self.flowing = False
        channels = self._all_channels()
        self._forget_channels()
        for channel in channels:
            channel.lost(error, False)
        self._ready.wake(error)
        self.close_error = None if by_application else self.last_error
        self.frontend.emit(Closed(self.close_error))

    def _fail_awaited(self, error: Error) -> None:
        awaited, self._awaited = self._awaited, deque()
        for waiter in awaited:
            if not waiter.done():
                waiter.set_exception(error)

    # Channels

    def new_name(self) -> str:
        """A consumer tag or a correlation id: ours, so that it is known before the server has answered."""
        self._names += 1
        return f"{self._prefix}.{self._names}"

    def consumer_removed(self, queue: str) -> None:
        """A consumer of the queue has ended. The server deletes an auto-delete queue with its last one: it is not to be
        there again, nor to be remembered."""
        declared = self.topology.queues.get(queue)
        if declared is not None and declared.arguments["auto_delete"] and not any(
                consumer.queue == queue for channel in self._all_channels() for consumer in channel.consumers.values()):
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
        for channel in self._all_channels():
            channel.update_flow()

    def buffered(self, size: int) -> None:
        """A message waits that no prefetch limits."""
        self._buffered += size + MESSAGE_OVERHEAD

    def taken(self, size: int) -> None:
        """The application has taken it."""
        self._buffered -= size + MESSAGE_OVERHEAD
        if self.paused and self._buffered < BUFFER_LOW:
            self._resume()

    def _check_buffer(self) -> None:
        """Something was read: whether reading goes on."""
        if self._buffered > BUFFER_HIGH and not self.paused and not self._expecting():
            self.paused = True
            self.frontend.pause_reading()

    def _expecting(self) -> bool:
        """Somebody waits for the server: what is awaited comes behind the messages, so that they are read, however many
        there are."""
        return bool(self._awaited) or any(channel.expecting for channel in self._all_channels())

    def ensure_reading(self) -> None:
        """Somebody begins to wait for the server."""
        if self.paused:
            self._resume()

    def _resume(self) -> None:
        self.paused = False
        self.frontend.resume_reading()

    @property
    def reading_paused(self) -> bool:
        """It is not the server's silence when we do not listen."""
        return self.paused


def describe(connection: BaseConnection) -> str:
    """Its repr, without the password."""
    parameters = connection.parameters
    state = "open" if connection.opened else "closed" if connection.is_closed else "not connected"
    return f"<Connection to {parameters.host}:{parameters.port}, vhost {parameters.vhost!r}: {state}>"

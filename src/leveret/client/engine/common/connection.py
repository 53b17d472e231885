"""Connection behaviour common to all protocols: states, waiters, closing, backpressure."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.frontend import FrontEnd, Procedure, Waiter
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.topology import Topology
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import ConnectionLost, Error, copy_error
from leveret.client.events import Closed, Disconnected
from leveret.client.parameters import Parameters
from leveret.client.tracing import new_tracing

# States of a connection. A LOST connection waits for a reconnect.
NEW: Final = 0
OPENING: Final = 1
RECOVERING: Final = 2
OPENED: Final = 3
LOST: Final = 4
CLOSED: Final = 5

# Bytes of buffered messages without a prefetch limit at which reading pauses, and below which it resumes.
BUFFER_HIGH: Final = 32 << 20
BUFFER_LOW: Final = 8 << 20
# Bytes of buffered messages without a prefetch limit at which reading pauses even while a caller waits for the server.
BUFFER_MAX: Final = 256 << 20
# Bytes by which output may grow while the socket is full; then reading pauses until the server has read.
OUTPUT_MAX: Final = 4 << 20
# Memory overhead of a buffered message in bytes.
MESSAGE_OVERHEAD: Final = 512


class WireEngine(Protocol):
    """The part of the wire engine of one socket that front ends use."""

    @property
    def heartbeat(self) -> float:
        """Seconds without output after which the client sends a heartbeat; 0 for never."""

    @property
    def pending(self) -> int:
        """Bytes of output."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""


class BaseConnectionCore(ABC):
    """One connection of the application, over a succession of sockets.

    Attributes:
        generation: Number of sockets so far.
        flowing: Whether the connection allows its channels to publish.
        blocked: The server's reason for blocking publishers; "" if they are not blocked.
        last_error: Cause of the loss of the last socket, or of the close.
        close_error: Cause of a permanent close; None if the connection is open or the application closed it.
        paused: Reading is paused because too many messages, or too much output, are buffered.
        tracing: Propagation of the trace context; None if it is off.
        locked_attempts: Consecutive recoveries that failed because the server still locked an exclusive queue.
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
        self.tracing = new_tracing(parameters.tracing)
        self._ready = Waiters(frontend)
        self._socket_full = False
        # Bytes of output when the socket became full, and whether it has grown by OUTPUT_MAX since.
        self._full_at = 0
        self._output_stalled = False
        self._buffered = 0
        # Bytes of buffered messages below which paused reading resumes.
        self._resume_below = BUFFER_LOW
        self.paused = False
        # Waiters for the next methods of the connection itself, in order.
        self._awaited: deque[Waiter] = deque()
        # All channel numbers below this one are in use.
        self._lowest_free = 1
        self._prefix = f"leveret.{uuid.uuid4().hex[:12]}"
        self._names = 0

    if TYPE_CHECKING:

        @property
        def engine(self) -> WireEngine: ...

    @property
    @abstractmethod
    def heartbeat_timeout(self) -> float:
        """Seconds without data after which the server is considered dead; 0 for never."""

    @abstractmethod
    def handshake(self, parameters: Parameters) -> Procedure:
        """Run the handshake on a new socket (a procedure). Raises the server's refusal."""

    @abstractmethod
    def recover(self) -> Procedure:
        """Restore the state of the previous connection after the handshake (a procedure)."""

    @abstractmethod
    def close(self) -> Procedure:
        """Close the connection cleanly (a procedure). Returns at once if there is no connection."""

    @abstractmethod
    def to_send(self) -> bytes:
        """Return and clear the output."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Process data from the socket."""

    @abstractmethod
    def new_channel(self, confirms: bool, transactional: bool) -> BaseChannelCore:
        """Return a channel with the lowest free number; its `open` opens it."""

    @abstractmethod
    def update_secret(self, secret: str, reason: str) -> Waiter:
        """Send the server a new secret."""

    @abstractmethod
    def _all_channels(self) -> Sequence[BaseChannelCore]: ...

    @abstractmethod
    def _forget_channels(self) -> None: ...

    @property
    def opened(self) -> bool:
        """Whether the connection is open."""
        return self.state == OPENED

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost and will be reconnected."""
        return self.state == LOST

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self.state == CLOSED

    # Opening

    def _begin(self, parameters: Parameters) -> None:
        """Reset the state for a new socket."""
        self.parameters = parameters
        self.generation += 1
        self.state = OPENING
        self.blocked = ""
        self.paused = self._socket_full = self._output_stalled = False

    def ready(self) -> None:
        """Complete the recovery: publishes and calls resume. Raises the error of a socket that was lost meanwhile."""
        self._change_state(RECOVERING, OPENED)
        self.locked_attempts = 0
        self._update_flow()
        self._ready.wake()

    def _change_state(self, before: int, after: int) -> None:
        """Change the state. Raises the last error if the socket was lost before the procedure resumed."""
        if self.state != before:
            raise self.last_error.with_traceback(None)
        self.state = after

    def ready_waiter(self) -> Waiter:
        """Return a waiter for an open connection. Raises the error of a connection that is closed for good."""
        if self.is_closed:
            raise copy_error(self.last_error)
        return self._ready.new()

    def not_open_error(self) -> Error:
        """Return the error for a call on a connection that is not open."""
        return self.last_error

    def expect(self) -> Waiter:
        """Return a waiter for the next method of the connection. Raises the error of a connection that has ended."""
        if self.state in (LOST, CLOSED):
            raise copy_error(self.last_error)
        return self._await_next()

    def _await_next(self) -> Waiter:
        waiter: Waiter = self.frontend.new_waiter()
        self._awaited.append(waiter)
        self.ensure_reading()
        return waiter

    def _resolve_next(self, result: Result) -> None:
        """Set the result of the first waiter."""
        if self._awaited:
            awaited = self._awaited.popleft()
            if not awaited.done():
                awaited.set_result(result)

    # Closing

    def lost(self, error: Error, recoverable: bool = True) -> None:
        """Handle the loss of the socket: fail all waiters."""
        self._fail_awaited(error)
        before = self.state
        if before in (CLOSED, LOST, NEW):
            return
        self.last_error = copy_error(error)
        self.flowing = False
        if (before == OPENED and not (recoverable and self.parameters.reconnect)) or (
            before == RECOVERING and not recoverable
        ):
            self.end(error)
            return
        self.state = LOST
        for channel in self._all_channels():
            channel.lost(error, True)
        if before == OPENED:
            self.frontend.emit(Disconnected(error))
            self.frontend.reconnect()

    def end(self, error: Error, by_application: bool = False) -> None:
        """Close for good: by the application, by the server, or because no attempt to reconnect succeeded."""
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
        """Return a consumer tag or a correlation id. The client assigns them, so that they are known before the reply."""
        self._names += 1
        return f"{self._prefix}.{self._names}"

    def consumer_removed(self, queue: str) -> None:
        """Handle the end of a consumer. Forgets an auto-delete queue, which the server deletes with its last consumer."""
        declared = self.topology.queues.get(queue)
        if (
            declared is not None
            and declared.arguments["auto_delete"]
            and not any(
                consumer.queue == queue for channel in self._all_channels() for consumer in channel.consumers.values()
            )
        ):
            self.topology.remove_queue(queue)

    # Flow control

    def set_socket_full(self, full: bool, pending: int = 0) -> None:
        """Set whether the write buffer of the socket is full; `pending` is the number of bytes in it."""
        self._socket_full = full
        self._full_at = pending
        self._update_flow()
        if not full and self._output_stalled:
            self._output_stalled = False
            self._resume()

    def check_output(self, pending: int) -> None:
        """Pause reading if the output of a full socket has grown too much: the server does not read the replies to it."""
        if pending - self._full_at > OUTPUT_MAX and not self._output_stalled and self.state == OPENED:
            self._output_stalled = True
            self._pause()

    @property
    def socket_is_full(self) -> bool:
        """Whether the write buffer of the socket is full."""
        return self._socket_full

    def _update_flow(self) -> None:
        self.flowing = self.state == OPENED and not self.blocked and not self._socket_full
        for channel in self._all_channels():
            channel.update_flow()

    def add_buffered(self, size: int) -> None:
        """Count a buffered message without a prefetch limit."""
        self._buffered += size + MESSAGE_OVERHEAD

    def remove_buffered(self, size: int) -> None:
        """Subtract a message that the application has taken."""
        self._buffered -= size + MESSAGE_OVERHEAD
        if self.paused and self._buffered < self._resume_below and not self._output_stalled:
            self._resume()

    def _check_buffer(self) -> None:
        """Pause reading if too much is buffered."""
        if self._buffered > BUFFER_HIGH and self.state == OPENED:
            if self._buffered > BUFFER_MAX:
                self._resume_below = BUFFER_MAX - BUFFER_LOW
                self._pause()
            elif not self.paused and not self._expecting():
                self._resume_below = BUFFER_LOW
                self._pause()

    def _expecting(self) -> bool:
        """Return whether a caller waits for the server. Its reply follows messages that must be read first."""
        return bool(self._awaited) or any(channel.expecting for channel in self._all_channels())

    def ensure_reading(self) -> None:
        """Resume reading, because a caller waits for the server."""
        if self.paused and not self.stalled:
            self._resume()

    @property
    def stalled(self) -> bool:
        """Whether reading is paused even for callers that wait for the server."""
        return self.paused and (self._output_stalled or self._buffered > BUFFER_MAX)

    def _pause(self) -> None:
        self.paused = True
        self.frontend.pause_reading()

    def _resume(self) -> None:
        self.paused = False
        self.frontend.resume_reading()

    @property
    def reading_paused(self) -> bool:
        """Whether reading is paused. Missing data then does not mean that the server is dead."""
        return self.paused


def describe(connection: BaseConnectionCore) -> str:
    """Return the repr of a connection, without the password."""
    parameters = connection.parameters
    state = "open" if connection.opened else "closed" if connection.is_closed else "not connected"
    return f"<Connection to {parameters.host}:{parameters.port}, vhost {parameters.vhost!r}: {state}>"

"""Front end of the engine on an event loop: the socket of a connection, its timers, and reconnects."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from leveret.client._async.stream import Stream, open_stream
from leveret.client.delivery import Delivery
from leveret.client.engine.common.backoff import Backoffs
from leveret.client.engine.common.connection import BaseConnectionCore
from leveret.client.engine.common.endpoints import Endpoints
from leveret.client.engine.common.frontend import FrontEnd, Procedure
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.socket_errors import lost_error
from leveret.client.engine.protocols import fallback_core, new_core
from leveret.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    ProtocolMismatch,
    Timeout,
    TlsFailed,
)
from leveret.client.events import Closed, Connected, Event, Reconnecting, add_event
from leveret.client.files import FileMessage
from leveret.client.message import Message
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Default, Limit

P = ParamSpec("P")
R = TypeVar("R")

# Bytes of output at which it is written at once, not at the end of the turn of the event loop.
FLUSH_SIZE: Final = 32768
# Seconds by which a timer of the event loop may fire early.
_TIMER_TOLERANCE: Final = 0.001


class EventQueue(asyncio.Queue[Event]):
    """A queue of events."""

    def _init(self, maxsize: int) -> None:
        self._queue: deque[Event] = deque()

    def _put(self, item: Event) -> None:
        add_event(self._queue, item)


class Driver(FrontEnd):
    """The socket of a connection and its timers.

    Attributes:
        lock: Guards the engine in the sync API, which is generated from the async API. Never contended here.
        hosts: Hosts to connect to.
        core: Engine of the connection.
        stream: Socket of the connection, if any.
        callbacks: Callbacks for events.
        closed: Set when the connection is closed for good.
    """

    message_class = Message
    delivery_class = Delivery
    file_class = FileMessage

    def __init__(self, hosts: Sequence[Parameters]) -> None:
        self._loop = asyncio.get_running_loop()
        self.lock = threading.RLock()
        self.hosts = list(hosts)
        self._backoffs = Backoffs()
        self.core: BaseConnectionCore = new_core(self, self.hosts[0])
        self.stream: Stream | None = None
        self.closed = asyncio.Event()
        self._flushing = False
        on_event = self.hosts[0].on_event
        self.callbacks: list[Callable[[Event], object]] = [] if on_event is None else [on_event]
        self._reconnecting: asyncio.Task[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._last_received = 0.0
        self._last_sent = 0.0

    @property
    def silence(self) -> float:
        """Seconds since the server sent data."""
        return self._loop.time() - self._last_received

    # Opening

    async def open(self) -> None:
        """Connect for the first time, trying every host once. Raises the error of the last host."""
        for number, parameters in enumerate(self.hosts, 1):
            try:
                self.core = new_core(self, parameters)
                try:
                    await self._connect(parameters)
                except ProtocolMismatch as error:
                    self.core = fallback_core(self, parameters, error)
                    await self._connect(parameters)
                self.core.ready()
            except Error:
                if number == len(self.hosts):
                    raise
                continue
            self.emit(Connected(parameters.host, parameters.port, number, True))
            return

    async def _connect(self, parameters: Parameters) -> None:
        """Connect to this server, or to one that it redirects to."""
        endpoints = Endpoints(parameters)
        while True:
            try:
                await self._connect_to(endpoints.current)
                return
            except ConnectionFailed as error:
                endpoints.advance(error)

    async def _connect_to(self, parameters: Parameters) -> None:
        """Open a socket and run the handshake. Raises `Error`, and then leaves no socket open."""
        stream = None
        try:
            async with asyncio.timeout(parameters.connect_timeout):
                stream = await open_stream(self, parameters)
                self.stream = stream
                self._last_received = self._last_sent = self._loop.time()
                self._loop.call_soon(stream.begin)
                await self.run(self.core.handshake(parameters), None, "the handshake")
            self._tick()
        except TimeoutError:
            self._drop(stream)
            raise ConnectionFailed(
                f"no connection to {parameters.host}:{parameters.port} within {parameters.connect_timeout:g} s"
                " (connect_timeout)",
                host=parameters.host,
                port=parameters.port,
            ) from None
        except ConnectionClosed as error:
            self._drop(stream)
            kind = TlsFailed if isinstance(error.__cause__, ssl.SSLError) else ConnectionFailed
            raise kind(
                f"{parameters.host}:{parameters.port} closed the connection before it was open: {error}",
                host=parameters.host,
                port=parameters.port,
                reply_code=error.reply_code,
                reply_text=error.reply_text,
            ) from None
        except BaseException:
            self._drop(stream)
            raise

    def _drop(self, stream: Stream | None) -> None:
        if stream is not None:
            if self.stream is stream:
                self.stream = None
            stream.abort()

    async def close(self) -> None:
        """Close the connection and its socket."""
        reconnecting, self._reconnecting = self._reconnecting, None
        if reconnecting is not None:
            reconnecting.cancel()
        stream = self.stream
        try:
            async with asyncio.timeout(self.core.parameters.connect_timeout):
                await self.run(self.core.close(), None, "connection.close")
        except (Error, TimeoutError):
            pass
        finally:
            if stream is not None:
                self._flush()
                if stream.transport is not None:
                    stream.transport.close()
        if stream is not None:
            try:
                async with asyncio.timeout(1):
                    await stream.wait_closed()
            except TimeoutError:
                stream.abort()
        if reconnecting is not None:
            await asyncio.wait([reconnecting])

    def reconnect(self) -> None:
        """Start reconnecting, unless already in progress."""
        if self._reconnecting is None:
            self._reconnecting = self._loop.create_task(self._reconnect(), name="leveret reconnect")

    async def _reconnect(self) -> None:
        """Reconnect until the connection is restored or all attempts have failed."""
        error: Error = self.core.last_error
        try:
            for attempt in self._backoffs.begin(self.hosts, self.core.parameters, error):
                parameters = attempt.parameters
                self.emit(Reconnecting(parameters.host, parameters.port, attempt.number, attempt.delay))
                await asyncio.sleep(attempt.delay)
                try:
                    await self._connect(parameters)
                    stream = self.stream
                    try:
                        await self.run(self.core.recover(), DEFAULT, "recovering the connection")
                    except BaseException:
                        self._drop(stream)
                        raise
                except Error as failed:
                    error = failed
                    self.core.lost(ConnectionLost(f"the connection is lost: {failed}"))
                    if self.core.is_closed:
                        return
                    continue
                self.emit(Connected(parameters.host, parameters.port, attempt.number, False))
                return
            self.core.end(error)
        finally:
            if self._reconnecting is asyncio.current_task():
                self._reconnecting = None
                if self.core.is_lost:
                    self.reconnect()

    # Waiting

    async def run(self, procedure: Procedure, limit: Limit, what: str) -> None:
        """Run a procedure of the engine, with a timeout for each of its waits. Raises `Timeout`."""
        try:
            waiter = next(procedure)
            while True:
                try:
                    result = await self.wait(waiter, limit, what)
                except BaseException as error:
                    waiter = procedure.throw(error)
                else:
                    waiter = procedure.send(result)
        except StopIteration:
            return

    async def wait(self, waiter: Result, limit: Limit, what: str, left: float | None = None) -> Result:
        """Wait for the result. The timeout is `limit`, of which `left` seconds remain if given. Raises `Timeout`."""
        seconds = self.core.parameters.timeout if isinstance(limit, Default) else limit
        handle = None
        if seconds is not None:
            handle = self._loop.call_later(seconds if left is None else left, _expire, waiter, what, seconds)
        try:
            return await waiter
        finally:
            if handle is not None:
                handle.cancel()

    async def wait_open(self, limit: Limit = DEFAULT, left: float | None = None) -> None:
        """Wait for a connection; `limit` and `left` as for `wait`.

        Raises the error of a connection that is closed for good, and `Timeout`.
        """
        while not self.core.opened:
            await self.wait(self.core.ready_waiter(), limit, f"a connection ({self.core.last_error})", left)

    async def wait_closed(self, timeout: float | None) -> bool:
        """Wait until the connection is closed for good. Returns False after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True

    def call(self, function: Callable[P, R], *args: P.args, **keywords: P.kwargs) -> R:
        """Call the engine."""
        return function(*args, **keywords)

    def interrupted(self, error: BaseException) -> None:
        """Handle an exception raised within the engine. Only the sync API sees exceptions of signal handlers."""

    async def read_file(self, read: Callable[[], bytes]) -> bytes:
        """Call a function that reads from a file, in a thread."""
        return await asyncio.to_thread(read)

    def result_of(self, waiter: asyncio.Future[Result]) -> Result:
        """Return the result of a waiter whose caller has stopped waiting; None if it has none."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            return waiter.result()
        return None

    # Methods of FrontEnd

    def new_waiter(self) -> asyncio.Future[Result]:
        """Return a new waiter for a result."""
        return self._loop.create_future()

    def flush_soon(self) -> None:
        """Write the engine's output soon."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif self.core.engine.pending > FLUSH_SIZE:
            self._write()

    def _flush(self) -> None:
        self._flushing = False
        self._write()

    def _write(self) -> None:
        stream = self.stream
        if stream is not None and stream.transport is not None:
            data = self.core.to_send()
            if data:
                self._last_sent = self._loop.time()
                stream.transport.write(data)
                if self.core.socket_is_full:
                    self.core.check_output(stream.transport.get_write_buffer_size())

    def emit(self, event: Event) -> None:
        """Notify the callbacks of an event."""
        for callback in list(self.callbacks):
            self._loop.call_soon(callback, event)
        if isinstance(event, Closed):
            self._cancel_heartbeat_timer()
            self.closed.set()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self.stream is not None and self.stream.transport is not None:
            self.stream.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self.stream is not None and self.stream.transport is not None and not self.stream.transport.is_closing():
            # Do not count the pause as silence of the server.
            self._last_received = self._loop.time()
            self.stream.transport.resume_reading()

    def close_socket(self) -> None:
        """Write the remaining output, and close the socket."""
        stream, self.stream = self.stream, None
        if stream is not None and stream.transport is not None:
            data = self.core.to_send()
            if data:
                stream.transport.write(data)
            stream.transport.close()

    # The socket

    def received(self, data: bytes) -> None:
        """Handle data from the socket."""
        self._last_received = self._loop.time()
        self.core.receive(data)

    def socket_lost(self, error: Exception | None) -> None:
        """Handle the loss of the socket."""
        self.stream = None
        self._cancel_heartbeat_timer()
        self.core.lost(lost_error(error))

    # Heartbeats

    def _tick(self) -> None:
        """Send and check heartbeats. Schedules the next check even after an exception."""
        self._cancel_heartbeat_timer()
        heartbeat = self.core.engine.heartbeat
        if not heartbeat or self.stream is None:
            return
        try:
            self._keep_alive(heartbeat)
        finally:
            if self.stream is not None:
                left = self._last_sent + heartbeat / 2 - self._loop.time()
                self._heartbeat_timer = self._loop.call_later(min(max(left, heartbeat / 20), heartbeat / 4), self._tick)

    def _keep_alive(self, heartbeat: float) -> None:
        """Send a heartbeat after half an interval without output; drop the connection after two intervals without data."""
        now = self._loop.time()
        if now - self._last_sent >= heartbeat / 2 - _TIMER_TOLERANCE:
            self.core.engine.send_heartbeat()
            self._write()
        silence = self.silence
        if 0 < self.core.heartbeat_timeout < silence and not self.core.reading_paused:
            stream = self.stream
            self.stream = None
            if stream is not None:
                stream.abort()
            self.core.lost(
                ConnectionLost(
                    f"the connection is lost: no data from the server for {silence:.0f} s"
                    f" (heartbeat: {self.core.heartbeat_timeout / 2:g} s)"
                )
            )

    def _cancel_heartbeat_timer(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None


def _expire(waiter: asyncio.Future[Result], what: str, seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(Timeout(f"{what}: timed out after {seconds:g} s (option timeout)"))

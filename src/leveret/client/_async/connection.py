"""A connection, async API: `leveret.connect`."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from leveret.client._async.channel import Channel
from leveret.client._async.opening import Opening
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client._async.stream import Stream, open_stream
from leveret.client._async.transaction import Transaction
from leveret.client.amqp10 import Filters
from leveret.client.delivery import Delivery
from leveret.client.engine.amqp10.links import amqp10_session, check_protocol
from leveret.client.engine.amqp10.transactions import TransactionCore
from leveret.client.engine.common.backoff import Backoff
from leveret.client.engine.common.base import describe
from leveret.client.engine.common.endpoints import Endpoints
from leveret.client.engine.common.frontend import FrontEnd, Procedure
from leveret.client.engine.common.socket_errors import lost_error
from leveret.client.engine.protocols import AnyCore, fallback_core, new_core
from leveret.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    ProtocolMismatch,
    Timeout,
    TlsFailed,
)
from leveret.client.events import Closed, Connected, Event, Reconnecting
from leveret.client.files import FileMessage
from leveret.client.message import Message
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Deadlines, Default, Limit
from leveret.client.url import parse_urls

# Bytes of output at which it is written before the current turn of the event loop ends.
FLUSH_SIZE: Final = 32768
# Seconds by which a timer of the event loop may fire early.
_TIMER_TOLERANCE: Final = 0.001


def connect(url: str | Sequence[str] = "amqp://", **options: Any) -> Opening[Connection]:
    """Connect to a server, or to the first of several that answers. The default is localhost, as guest.

        async with leveret.connect("amqp://localhost") as connection:
            ...

    The options are those of `leveret.client.parameters.Parameters`; they may also be part of the URL's query.

    Raises:
        InvalidUrl: The URL or an option is invalid. Raised immediately.
        ConnectionFailed: The client could not connect. Raised when the result is awaited.
    """
    hosts = parse_urls(url, **options)

    async def open() -> Connection:
        connection = Connection(hosts)
        await connection.open()
        return connection

    return Opening(open)


class Connection(FrontEnd):
    """A connection that reconnects when it is lost and restores everything on it; see docs/client/reconnecting.md.

    Attributes:
        core: Engine of the connection.
        stream: Socket of the connection, if any.
    """

    message_class = Message
    delivery_class = Delivery
    file_class = FileMessage

    def __init__(self, hosts: Sequence[Parameters]) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosts = list(hosts)
        self.core: AnyCore = new_core(self, self._hosts[0])
        self.stream: Stream | None = None
        self._flushing = False
        self._callbacks: list[Callable[[Event], object]] = []
        for parameters in self._hosts[:1]:
            if parameters.on_event is not None:
                self._callbacks.append(parameters.on_event)
        self._reconnecting: asyncio.Task[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._last_received = 0.0
        self._last_sent = 0.0
        self._closed = self._loop.create_future()

    # For the application

    @property
    def parameters(self) -> Parameters:
        """Parameters of the host that it is connected to."""
        return self.core.parameters

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self.core.opened

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self.core.is_closed

    @property
    def blocked(self) -> str:
        """The server's reason for blocking publishers; "" if it does not."""
        return self.core.blocked

    @property
    def server_properties(self) -> dict[str, Any]:
        """Properties of the server (`connection.start`)."""
        return self.core.server_properties

    def channel(self, *, confirms: bool = True, prefetch: int = 0, transactional: bool = False) -> Opening[Channel]:
        """Open a channel. Await the result, or enter it with `async with`.

        While the connection is lost, the call waits for the next one, within the connection's `timeout`.

        Args:
            confirms: Publishes wait for the server's confirm. Ignored on a transactional channel.
            prefetch: Maximum number of unacked messages of all consumers together (`basic.qos` with global); 0 for a limit
                per consumer.
            transactional: Publishes and acknowledgements take effect when they are committed.
        """

        async def open() -> Channel:
            deadlines = Deadlines(self.parameters.timeout, None, DEFAULT)
            while True:
                seconds, left = deadlines.remaining(False, time.monotonic())
                await self.wait_open(seconds, left)
                generation = self.core.generation
                try:
                    return await self._open_channel(confirms, prefetch, transactional)
                except ConnectionClosed:
                    # The connection was lost unnoticed, and with it a channel that the server may have opened.
                    lost = not self.core.opened or self.core.generation > generation
                    late = seconds is not None and deadlines.remaining(False, time.monotonic())[1] <= 0
                    if self.is_closed or late or not lost:
                        raise

        return Opening(open)

    async def _open_channel(self, confirms: bool, prefetch: int, transactional: bool) -> Channel:
        core = self.core.new_channel(confirms and not transactional, transactional)
        channel = Channel(self, core)
        try:
            if prefetch:
                core.qos = {"prefetch_count": prefetch, "prefetch_size": 0, "global": True}
            await self.run(core.open(), DEFAULT, "channel.open")
        except BaseException:
            # The number is free again once the server has closed the channel.
            core.abandon()
            raise
        return channel

    def sender(self, address: str | None, *, name: str = "", window: int = 200, settled: bool = False,
               settle_second: bool = False, durable: bool = False, dynamic: bool = False,
               properties: Mapping[str, Any] | None = None, capabilities: tuple[str, ...] = ()) -> Opening[Sender]:
        """Attach a sender on a session of its own; otherwise as `Channel.sender`."""
        options: dict[str, Any] = {"name": name, "window": window, "settled": settled, "settle_second": settle_second,
                                   "durable": durable, "dynamic": dynamic, "properties": properties,
                                   "capabilities": capabilities}

        async def open() -> Sender:
            channel = await self._open_link_channel()
            try:
                return await channel.sender(address, **options)
            except BaseException:
                channel.core.abandon()
                raise

        return Opening(open)

    def receiver(self, address: str | None, *, name: str = "", prefetch: int = 100, filters: Filters | None = None,
                 browse: bool = False, durable: bool = False, settled: bool = False, settle_second: bool = False,
                 dynamic: bool = False, properties: Mapping[str, Any] | None = None,
                 capabilities: tuple[str, ...] = ()) -> Opening[Receiver]:
        """Attach a receiver on a session of its own; otherwise as `Channel.receiver`."""
        options: dict[str, Any] = {"name": name, "prefetch": prefetch, "filters": filters, "browse": browse,
                                   "durable": durable, "settled": settled, "settle_second": settle_second,
                                   "dynamic": dynamic, "properties": properties, "capabilities": capabilities}

        async def open() -> Receiver:
            channel = await self._open_link_channel()
            try:
                return await channel.receiver(address, **options)
            except BaseException:
                channel.core.abandon()
                raise

        return Opening(open)

    async def _open_link_channel(self) -> Channel:
        await self.wait_open()
        check_protocol(self.core)
        channel = await self.channel()
        amqp10_session(channel.core).link_scoped = True
        return channel

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Run an AMQP 1.0 transaction, as in `async with connection.transaction() as tx`.

        What is sent and settled with the transaction is committed at the end of the block, or rolled back if the block
        raises. On other protocols it raises `NotSupported`; 0-9-1 has transactional channels instead.
        """
        await self.wait_open()
        check_protocol(self.core)
        core = TransactionCore(amqp10_session(self.core.new_channel(True, False)))
        core.session.internal = True
        try:
            await self.run(core.begin(), DEFAULT, "a declare")
        except BaseException:
            core.session.abandon()
            raise
        async with Transaction(self, core) as transaction:
            yield transaction

    async def update_secret(self, secret: str, reason: str = "") -> None:
        """Send the server a new secret, such as a token, before the current one expires (RabbitMQ)."""
        # A reconnect must use the new one.
        hosts = [replace(host, password=secret) for host in self._hosts]
        await self.wait_open()
        await self.wait(self.core.update_secret(secret, reason), DEFAULT, "connection.update-secret")
        self._hosts = hosts
        self.core.parameters = replace(self.core.parameters, password=secret)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call `callback` with every event, in the event loop."""
        self._callbacks.append(callback)

    def events(self) -> AsyncIterator[Event]:
        """Return an iterator over all events from now on, until the connection is closed for good."""
        waiting: asyncio.Queue[Event] = asyncio.Queue()
        if self.is_closed:
            waiting.put_nowait(Closed(self.core.close_error))
        # The queue is freed with the iterator.
        queue = weakref.ref(waiting)

        def put(event: Event) -> None:
            found = queue()
            if found is not None:
                found.put_nowait(event)

        self._callbacks.append(put)
        weakref.finalize(waiting, self._callbacks.remove, put).atexit = False
        return _events(waiting)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed for good. Raises the cause, unless the application closed it."""
        await asyncio.shield(self._closed)

    async def close(self) -> None:
        """Close the connection. Pending calls fail; unconfirmed publishes may or may not have taken effect."""
        reconnecting, self._reconnecting = self._reconnecting, None
        if reconnecting is not None:
            reconnecting.cancel()
        stream = self.stream
        try:
            async with asyncio.timeout(self.parameters.connect_timeout):
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

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return describe(self.core)

    # Opening

    async def open(self) -> None:
        """Connect for the first time: try every host once. Raises the error of the last."""
        for number, parameters in enumerate(self._hosts, 1):
            try:
                self.core = new_core(self, parameters)
                try:
                    await self._connect(parameters)
                except ProtocolMismatch as error:
                    self.core = fallback_core(self, parameters, error)
                    await self._connect(parameters)
                self.core.ready()
            except Error:
                if number == len(self._hosts):
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
        """Open a socket and run the handshake. Raises an `Error`, and leaves no socket open."""
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
                " (connect_timeout)", host=parameters.host, port=parameters.port) from None
        except ConnectionClosed as error:
            self._drop(stream)
            kind = TlsFailed if isinstance(error.__cause__, ssl.SSLError) else ConnectionFailed
            raise kind(f"{parameters.host}:{parameters.port} closed the connection before it was open: {error}",
                       host=parameters.host, port=parameters.port, reply_code=error.reply_code,
                       reply_text=error.reply_text) from None
        except BaseException:
            self._drop(stream)
            raise

    def _drop(self, stream: Stream | None) -> None:
        if stream is not None:
            if self.stream is stream:
                self.stream = None
            stream.abort()

    def reconnect(self) -> None:
        """Start to reconnect, unless that is under way."""
        if self._reconnecting is None:
            self._reconnecting = self._loop.create_task(self._reconnect(), name="leveret reconnect")

    async def _reconnect(self) -> None:
        """Reconnect until the connection is restored or all attempts have failed."""
        error: Error = self.core.last_error
        try:
            for attempt in Backoff(self._hosts, self.parameters, random.random):
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

    async def wait(self, waiter: Any, limit: Limit, what: str, left: float | None = None) -> Any:
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

    # Methods of FrontEnd

    def new_waiter(self) -> asyncio.Future[Any]:
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

    def emit(self, event: Event) -> None:
        """Notify the callbacks of an event."""
        for callback in list(self._callbacks):
            self._loop.call_soon(callback, event)
        if isinstance(event, Closed):
            self._cancel_heartbeat_timer()
            if not self._closed.done():
                if event.error is None:
                    self._closed.set_result(None)
                else:
                    self._closed.set_exception(event.error)
                    # Mark the exception as retrieved: the application need not wait for it.
                    self._closed.exception()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self.stream is not None and self.stream.transport is not None:
            self.stream.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self.stream is not None and self.stream.transport is not None and not self.stream.transport.is_closing():
            # The time during which reading was paused does not count as silence of the server.
            self._last_received = self._loop.time()
            self.stream.transport.resume_reading()

    def close_socket(self) -> None:
        """Write what the engine still has, and close the socket."""
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
        """Handle the end of the socket."""
        self.stream = None
        self._cancel_heartbeat_timer()
        self.core.lost(lost_error(error))

    # Heartbeats

    def _tick(self) -> None:
        """Send and check heartbeats, and schedule the next check even if that fails."""
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
        """Send a heartbeat after half an interval without output; give up the server after two intervals without data."""
        now = self._loop.time()
        if now - self._last_sent >= heartbeat / 2 - _TIMER_TOLERANCE:
            self.core.engine.send_heartbeat()
            self._write()
        if 0 < self.core.heartbeat_timeout < now - self._last_received and not self.core.reading_paused:
            stream = self.stream
            self.stream = None
            if stream is not None:
                stream.abort()
            self.core.lost(ConnectionLost(
                f"the connection is lost: no data from the server for {now - self._last_received:.0f} s"
                f" (heartbeat: {self.core.heartbeat_timeout / 2:g} s)"))

    def _cancel_heartbeat_timer(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None


async def _events(waiting: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while True:
        event = await waiting.get()
        yield event
        if isinstance(event, Closed):
            return


def _expire(waiter: asyncio.Future[Any], what: str, seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(Timeout(f"{what}: timed out after {seconds:g} s (option timeout)"))

"""A connection, async API: `leveret.connect`."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from leveret.client._async.channel import Channel
from leveret.client._async.driver import Driver, EventQueue
from leveret.client._async.opening import Opening
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client._async.transaction import Transaction
from leveret.client.amqp10 import Filters
from leveret.client.engine.amqp10.links import amqp10_session, check_protocol
from leveret.client.engine.amqp10.transactions import TransactionCore
from leveret.client.engine.common.base import describe
from leveret.client.engine.protocols import AnyCore
from leveret.client.errors import ConnectionClosed, Timeout, copy_error
from leveret.client.events import Closed, Event
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Deadlines
from leveret.client.url import parse_urls


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
        await connection.driver.open()
        return connection

    return Opening(open)


class Connection:
    """A connection that reconnects when it is lost and restores everything on it; see docs/client/reconnecting.md.

    Tasks may share it and its channels.

    Attributes:
        driver: Socket of the connection, and what it does in the background.
    """

    def __init__(self, hosts: Sequence[Parameters]) -> None:
        self._callbacks: list[Callable[[Event], object]] = []
        if hosts[0].on_event is not None:
            self._callbacks.append(hosts[0].on_event)
        self.driver = Driver(hosts, self._callbacks)

    @property
    def core(self) -> AnyCore:
        """The engine of the connection."""
        return self.driver.core

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
                await self.driver.wait_open(seconds, left)
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
        driver = self.driver
        with driver.lock:
            core = self.core.new_channel(confirms and not transactional, transactional)
        channel = Channel(self, core)
        try:
            if prefetch:
                core.qos = {"prefetch_count": prefetch, "prefetch_size": 0, "global": True}
            await driver.run(core.open(), DEFAULT, "channel.open")
        except BaseException:
            # The number is free again once the server has closed the channel.
            with driver.lock:
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
                with self.driver.lock:
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
                with self.driver.lock:
                    channel.core.abandon()
                raise

        return Opening(open)

    async def _open_link_channel(self) -> Channel:
        await self.driver.wait_open()
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
        await self.driver.wait_open()
        check_protocol(self.core)
        driver = self.driver
        with driver.lock:
            core = TransactionCore(amqp10_session(self.core.new_channel(True, False)))
            core.session.internal = True
        try:
            await driver.run(core.begin(), DEFAULT, "a declare")
        except BaseException:
            with driver.lock:
                core.session.abandon()
            raise
        async with Transaction(self, core) as transaction:
            yield transaction

    async def update_secret(self, secret: str, reason: str = "") -> None:
        """Send the server a new secret, such as a token, before the current one expires (RabbitMQ)."""
        driver = self.driver
        # A reconnect must use the new one.
        hosts = [replace(host, password=secret) for host in driver.hosts]
        await driver.wait_open()
        waiter = driver.call(self.core.update_secret, secret, reason)
        await driver.wait(waiter, DEFAULT, "connection.update-secret")
        with driver.lock:
            driver.hosts = hosts
            self.core.parameters = replace(self.core.parameters, password=secret)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call `callback` with every event, in the event loop."""
        self._callbacks.append(callback)

    def events(self) -> AsyncIterator[Event]:
        """Return an iterator over all events from now on, until the connection is closed for good."""
        waiting = EventQueue()
        with self.driver.lock:
            if self.is_closed:
                waiting.put_nowait(Closed(self.core.close_error))
            # The queue is freed with the iterator.
            queue = weakref.ref(waiting)

            def put(event: Event) -> None:
                found = queue()
                if found is not None:
                    found.put_nowait(event)

            self._callbacks.append(put)
            weakref.finalize(waiting, _remove, self._callbacks, put).atexit = False
        return _events(waiting)

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the connection is closed for good. Raises `Timeout`, or the cause unless the application closed it."""
        if not await self.driver.wait_closed(timeout):
            raise Timeout(f"the connection was not closed within {timeout:g} s (argument timeout)")
        error = self.core.close_error
        if error is not None:
            raise copy_error(error)

    async def close(self) -> None:
        """Close the connection. Pending calls fail; unconfirmed publishes may or may not have taken effect."""
        await self.driver.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return describe(self.core)


async def _events(waiting: EventQueue) -> AsyncIterator[Event]:
    while True:
        event = await waiting.get()
        yield event
        if isinstance(event, Closed):
            return


def _remove(callbacks: list[Callable[[Event], object]], callback: Callable[[Event], object]) -> None:
    try:
        callbacks.remove(callback)
    except ValueError:
        pass  # a forked process has already removed it

"""Base class of connections of all protocols, async API."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.driver import Driver, EventQueue
from leveret.client._async.opening import Opening
from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.connection import BaseConnectionCore, describe
from leveret.client.errors import ConnectionClosed, Timeout, copy_error
from leveret.client.events import Closed, Event
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Deadlines

T = TypeVar("T")
SomeConnection = TypeVar("SomeConnection", bound="BaseConnection")


class BaseConnection(ABC):
    """A connection that reconnects when it is lost and restores its state; see docs/client/reconnecting.md.

    Tasks may share it and its channels.

    Attributes:
        driver: Socket and background tasks of the connection.
    """

    _core: BaseConnectionCore

    def __init__(self, driver: Driver, core: BaseConnectionCore) -> None:
        self.driver = driver
        self._core = core

    @property
    def parameters(self) -> Parameters:
        """Parameters of the connected host."""
        return self._core.parameters

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._core.opened

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._core.is_closed

    @property
    def blocked(self) -> str:
        """The server's reason for blocking publishers; "" if they are not blocked."""
        return self._core.blocked

    @property
    def server_properties(self) -> dict[str, Any]:
        """Properties of the server (`connection.start`)."""
        return self._core.server_properties

    @abstractmethod
    def open_channel(self, *, confirms: bool = True, transactional: bool = False) -> Opening[BaseChannel]:
        """Open a channel, or a session over AMQP 1.0, for code that works with every protocol.

        Args:
            confirms: Publishes wait for the server's confirm. Ignored on a transactional channel.
            transactional: Publishes and acknowledgements take effect when they are committed.
        """

    async def _open(self, open: Callable[[], Awaitable[T]]) -> T:
        """Call `open`, and retry if the connection is lost meanwhile, within the connection's `timeout`."""
        deadlines = Deadlines(self.parameters.timeout, None, DEFAULT)
        while True:
            seconds, left = deadlines.remaining(False, time.monotonic())
            await self.driver.wait_open(seconds, left)
            generation = self._core.generation
            try:
                return await open()
            except ConnectionClosed:
                # The connection was lost unnoticed; the server may have opened the channel.
                lost = not self._core.opened or self._core.generation > generation
                late = seconds is not None and deadlines.remaining(False, time.monotonic())[1] <= 0
                if self.is_closed or late or not lost:
                    raise

    async def _open_core(self, core: BaseChannelCore) -> None:
        try:
            await self.driver.run(core.open(), DEFAULT, "channel.open")
        except BaseException:
            # The number is free again once the server has closed the channel.
            with self.driver.lock:
                core.abandon()
            raise

    async def update_secret(self, secret: str, reason: str = "") -> None:
        """Send the server a new secret, such as a token, before the current one expires (RabbitMQ)."""
        driver = self.driver
        # A reconnect must use the new secret.
        hosts = [replace(host, password=secret) for host in driver.hosts]
        await driver.wait_open()
        waiter = driver.call(self._core.update_secret, secret, reason)
        await driver.wait(waiter, DEFAULT, "connection.update-secret")
        with driver.lock:
            driver.hosts = hosts
            self._core.parameters = replace(self._core.parameters, password=secret)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call `callback` with every event, in the event loop."""
        self.driver.callbacks.append(callback)

    def events(self) -> AsyncIterator[Event]:
        """Return an iterator over all events from now on, until the connection is closed for good."""
        waiting = EventQueue()
        with self.driver.lock:
            if self.is_closed:
                waiting.put_nowait(Closed(self._core.close_error))
            # The queue is freed with the iterator.
            queue = weakref.ref(waiting)

            def put(event: Event) -> None:
                found = queue()
                if found is not None:
                    found.put_nowait(event)

            self.driver.callbacks.append(put)
            weakref.finalize(waiting, _remove, self.driver.callbacks, put).atexit = False
        return _events(waiting)

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the connection is closed for good. Raises `Timeout`, or the cause unless the application closed it."""
        if not await self.driver.wait_closed(timeout):
            raise Timeout(f"the connection was not closed within {timeout:g} s (argument timeout)")
        error = self._core.close_error
        if error is not None:
            raise copy_error(error)

    async def close(self) -> None:
        """Close the connection. Pending calls fail; unconfirmed publishes may or may not have taken effect."""
        await self.driver.close()

    async def __aenter__(self: SomeConnection) -> SomeConnection:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return describe(self._core)


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

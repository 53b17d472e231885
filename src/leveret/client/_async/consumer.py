"""A consumer, async API: an asynchronous iterator over messages."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leveret.client.engine.common.channel import BaseConsumerCore
from leveret.client.engine.common.encoding import name_of
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.message import Message
from leveret.client.timeouts import DEFAULT

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel
    from leveret.client._async.queue import Queue


class Consumer:
    """An iterator over the messages of a queue.

    It starts on the first iteration, or with `async with`, which cancels it at the end. Cancelling it ends the iteration.
    If the server ends it, the iteration raises the cause after the buffered messages. Tasks may share it.
    """

    _core: BaseConsumerCore

    def __init__(self, channel: BaseChannel, core: BaseConsumerCore, queue: str | Queue) -> None:
        self._channel = channel
        self._driver = channel.connection.driver
        self._core = core
        self._queue = queue
        self._started = False
        self._start_lock = asyncio.Lock()
        self._given_tag = core.tag
        # A consumer whose start was cancelled, and which the server may still start.
        self._previous: BaseConsumerCore | None = None

    @property
    def tag(self) -> str:
        """Consumer tag; "" before the start if none was given."""
        return self._core.tag

    @property
    def queue(self) -> str:
        """Queue of the consumer."""
        return self._core.queue

    @property
    def core(self) -> BaseConsumerCore:
        """The engine of the consumer."""
        return self._core

    async def start(self) -> Consumer:
        """Start consuming, unless already started."""
        async with self._start_lock:
            if not self._started:
                await self._start()
        return self

    async def _start(self) -> None:
        core = self._core
        sent: list[Waiter] = []

        def send() -> Waiter:
            # The name of a server-named queue may have changed.
            core.queue = name_of(self._queue)
            sent.append(core.begin())
            return sent[0]

        try:
            if self._given_tag and self._previous is not None:
                await self._wait_ended(self._previous)
            await self._channel._call("basic.consume", send)
        except BaseException as error:
            # The server may still start this consumer, so a restart needs a new one.
            with self._driver.lock:
                self._core = core.clone()
                self._core.tag = self._given_tag
                if sent:
                    core.abandon()
                    self._previous = core
                else:
                    core.end(error if isinstance(error, Error) else None)
            raise
        self._started = True

    async def _wait_ended(self, core: BaseConsumerCore) -> None:
        while True:
            with self._driver.lock:
                if core.ended:
                    return
                waiter = core.message_waiter()
            await self._driver.wait(waiter, DEFAULT, "basic.cancel")

    async def cancel(self) -> None:
        """Cancel the consumer. Buffered messages return to the queue."""
        core = self._core
        with self._driver.lock:
            if not self._started or core.ended:
                return
            attached = core.channel.opened and core.active
            if not attached:
                core.abandon()
        if not attached:
            await self._wait_ended(core)
            return
        try:
            await self._channel._call("basic.cancel", lambda: core.withdraw())
        except (ChannelClosed, ConnectionClosed):
            with self._driver.lock:
                core.end(None)

    async def __aenter__(self) -> Consumer:
        return await self.start()

    async def __aexit__(self, *raised: object) -> None:
        await self.cancel()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        return await self._next(None)

    async def next(self, timeout: float | None = None) -> Message:
        """Return the next message. Raises `Timeout` if none arrives in time, and StopAsyncIteration at the end."""
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> Message:
        driver = self._driver
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._started:
            await self.start()
        while True:
            with driver.lock:
                core = self._core
                if core.messages:
                    return driver.call(core.take)
                if core.ended:
                    if core.error is not None:
                        raise copy_error(core.error)
                    raise StopAsyncIteration
                waiter = core.message_waiter()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            await driver.wait(waiter, timeout, "a message", left)

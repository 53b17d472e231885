"""A consumer for asyncio: an asynchronous iterator over messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leveret.client.core.encoding import name_of
from leveret.client.core.frontend import Waiter
from leveret.client.core.protocols import AnyConsumer
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.message import Message
from leveret.client.timeouts import DEFAULT

if TYPE_CHECKING:
    from leveret.client.aio.channel import Channel
    from leveret.client.aio.queue import Queue


class Consumer:
    """Begins with its first message, or when it is entered with `async with`, which cancels it at the end. Ends when it is
    cancelled; raises when the server ends it, after the messages that were here. Several tasks may take messages of it."""

    def __init__(self, channel: Channel, core: AnyConsumer, queue: str | Queue) -> None:
        self._channel = channel
        self._core = core
        self._queue = queue
        self._started = False
        self._given_tag = core.tag
        # One previous it whose start was given up, and that the server may have to end first.
        self._previous: AnyConsumer | None = None

    @property
    def tag(self) -> str:
        """Its consumer tag, "" previous it has begun where none was given."""
        return self._core.tag

    @property
    def queue(self) -> str:
        return self._core.queue

    async def start(self) -> Consumer:
        """Begin to consume, once."""
        if self._started:
            return self
        self._started = True
        core = self._core
        previous = self._previous
        sent: list[Waiter] = []

        def send() -> Waiter:
            # A server-named queue may have another name by now.
            core.queue = name_of(self._queue)
            sent.append(core.begin())
            return sent[0]

        try:
            while self._given_tag and previous is not None and not previous.ended:
                await self._channel.connection.wait(previous.message_waiter(), DEFAULT, "basic.cancel")
            await self._channel._call("basic.consume", send)
        except BaseException as error:
            # It can be started again: as another one, as the server may begin with this one yet.
            self._started = False
            self._core = core.clone()
            self._core.tag = self._given_tag
            if sent:
                core.abandon()
                self._previous = core
            else:
                core.end(error if isinstance(error, Error) else None)
            raise
        return self

    async def cancel(self) -> None:
        """End it; messages that were not taken go back to the queue."""
        core = self._core
        if not self._started or core.ended:
            return
        if not (core.channel.opened and core.active):
            core.abandon()
            while not core.ended:
                await self._channel.connection.wait(core.message_waiter(), DEFAULT, "basic.cancel")
            return
        try:
            await self._channel._call("basic.cancel", lambda: core.withdraw())
        except (ChannelClosed, ConnectionClosed):
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
        """The next message. Raises `Timeout` when none comes within so many seconds, and StopAsyncIteration at the end."""
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> Message:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._started:
                if self._core.ended:
                    raise StopAsyncIteration
                await self.start()
            core = self._core
            if core.messages:
                return core.take()
            if core.ended:
                if core.error is not None:
                    raise copy_error(core.error)
                raise StopAsyncIteration
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            await self._channel.connection.wait(core.message_waiter(), left, "a message")

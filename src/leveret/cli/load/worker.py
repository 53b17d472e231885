"""The publishers and consumers of one process."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from leveret.cli.client_command import open_connection
from leveret.cli.load.histogram import Histogram
from leveret.cli.load.plan import Plan, Share
from leveret.cli.load.report import Report
from leveret.client.errors import PublishFailed
from leveret.wire.amqp0.values import FieldTable

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel
    from leveret.client._async.consumer import Consumer
    from leveret.client._async.publisher import Publisher
    from leveret.client.message import Message

# Nanoseconds between messages whose confirm latency is measured, per publisher.
_CONFIRM_SAMPLE_INTERVAL: Final = 10_000_000
# If a message is sent more than this many nanoseconds late, its latency counts from its due time. The event loop's clock
# has a resolution of 1 ms.
_MAX_DELAY: Final = 2_000_000
# A publisher that never blocks yields to the event loop after this many messages.
_YIELD_EVERY: Final = 256

_STAMP: Final = struct.Struct(">Q")
HEADER: Final = "sent"


class Worker:
    """Load generator of one process. The send time is at the start of each body, or in a header if bodies are too short."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._plan = plan
        self._share = share
        self._stack = AsyncExitStack()
        self._publishers: list[_Publishing] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self._consumed = 0
        self._consumed_at = 0
        self._delivering = Histogram()

    async def open(self) -> None:
        """Connect all clients and start the consumers."""
        plan = self._plan
        for number in self._share.consumers:
            connection = await self._stack.enter_async_context(
                open_connection(plan.urls, "bench consumer", reconnect=False)
            )
            for queue in plan.consumed_by(number):
                # One channel per queue, because an ack with `multiple` must not cover messages of another queue.
                channel = await connection.open_channel(confirms=False)
                consumer = channel.consume(queue, prefetch=plan.prefetch, no_ack=plan.no_ack)
                await consumer.start()
                self._create_task(self._consume(consumer))
        for number in self._share.publishers:
            connection = await self._stack.enter_async_context(
                open_connection(plan.urls, "bench publisher", reconnect=False)
            )
            self._publishers.append(_Publishing(plan, number, await connection.open_channel(confirms=plan.confirms)))

    async def start(self) -> None:
        """Start the publishers."""
        for publisher in self._publishers:
            self._create_task(publisher.run())

    async def report(self) -> Report:
        """Return the current report. Raises the error of a publisher or consumer that failed."""
        for task in self._tasks:
            if task.done():
                task.result()
        delivering, self._delivering = self._delivering, Histogram()
        report = Report(
            consumed=self._consumed, consumed_at=self._consumed_at, cpu=time.process_time(), delivering=delivering
        )
        for publisher in self._publishers:
            report.add(publisher.report())
        return report

    async def close(self) -> None:
        """Stop all clients immediately."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def _create_task(self, coroutine: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(coroutine))

    async def _consume(self, consumer: Consumer) -> None:
        clock = time.monotonic_ns
        acks = not self._plan.no_ack
        ack_every = self._plan.ack_every
        in_body = self._plan.size >= _STAMP.size
        unacked = 0
        async for message in consumer:
            now = clock()
            self._delivering.add(now - (_STAMP.unpack_from(message.body)[0] if in_body else _header(message)))
            self._consumed += 1
            self._consumed_at = now
            if acks:
                unacked += 1
                if unacked == ack_every:
                    unacked = 0
                    message.ack(multiple=ack_every > 1)


def _header(message: Message) -> int:
    value = message.headers.get(HEADER)
    return value if isinstance(value, int) else 0


class _Publishing:
    """One publisher."""

    def __init__(self, plan: Plan, number: int, channel: BaseChannel) -> None:
        self._plan = plan
        self._channel = channel
        self._routes = plan.routes(number)
        self._quota = plan.quota(number)
        self._filler = bytes(max(0, plan.size - _STAMP.size))
        self._publisher: Publisher | None = None
        self._measured: set[asyncio.Task[None]] = set()
        self._awaited = 0
        self._sent = 0
        self._refused = 0
        self._ended = 0
        self._confirmed_at = 0
        self._confirming = Histogram()

    def report(self) -> Report:
        waiting = self._awaited + (0 if self._publisher is None else self._publisher.unconfirmed)
        confirming, self._confirming = self._confirming, Histogram()
        return Report(
            published=self._sent,
            confirmed=max(0, self._sent - self._refused - waiting),
            refused=self._refused,
            ended=self._ended,
            published_at=self._confirmed_at,
            confirming=confirming,
        )

    async def run(self) -> None:
        """Publish until the quota is reached and all messages are confirmed."""
        plan = self._plan
        # The measured message counts towards the window.
        window = max(1, plan.window - 1)
        publisher = self._publisher = self._channel.publisher(plan.exchange_name, window=window, persistent=plan.persistent)
        try:
            await self._publish_all(publisher)
            await self._confirm(publisher)
            await asyncio.gather(*self._measured)
        finally:
            for task in self._measured:
                task.cancel()
        self._confirmed_at = time.monotonic_ns()
        self._ended = 1

    async def _confirm(self, publisher: Publisher) -> None:
        while True:
            try:
                await publisher.flush(None)
                return
            except PublishFailed as error:
                self._refused += len(error.messages)

    async def _publish_all(self, publisher: Publisher) -> None:
        plan = self._plan
        clock = time.monotonic_ns
        step = None if plan.rate is None else 1e9 * plan.publishers / plan.rate
        begun = clock()
        measure_at = begun if plan.confirms else 1 << 63
        one_by_one = plan.confirms and plan.window == 1
        for number, (routing_key, headers) in enumerate(islice(cycle(self._routes), self._quota)):
            now = due = clock()
            if step is not None:
                due = begun + int(number * step)
                if now < due:
                    await asyncio.sleep((due - now) / 1e9)
                    now = clock()
                if now - due < _MAX_DELAY:
                    due = now
            if one_by_one:
                await self._publish_measured(routing_key, headers, due)
            elif now >= measure_at:
                measure_at = now + _CONFIRM_SAMPLE_INTERVAL
                # The message is sent when this task yields; without a rate, its latency counts from then.
                task = asyncio.create_task(self._publish_measured(routing_key, headers, None if step is None else due))
                self._measured.add(task)
                task.add_done_callback(self._on_measured)
            else:
                await self._publish(publisher, routing_key, headers, due)
            if number % _YIELD_EVERY == 0 and not plan.confirms:
                await asyncio.sleep(0)

    def _on_measured(self, task: asyncio.Task[None]) -> None:
        self._measured.discard(task)
        if not task.cancelled():
            # Retrieve the exception. The same error ends the publisher, which reports it.
            task.exception()

    async def _publish(self, publisher: Publisher, routing_key: str, headers: FieldTable | None, sent: int) -> None:
        body, headers = self._message(headers, sent)
        while True:
            try:
                await publisher.publish(body, routing_key, headers=headers)
                break
            except PublishFailed as error:
                self._refused += len(error.messages)
        self._sent += 1

    async def _publish_measured(self, routing_key: str, headers: FieldTable | None, sent: int | None) -> None:
        plan = self._plan
        begun = sent if sent is not None else time.monotonic_ns()
        body, headers = self._message(headers, begun)
        self._sent += 1
        self._awaited += 1
        try:
            await self._channel.publish(
                body, routing_key, plan.exchange_name, timeout=None, persistent=plan.persistent, headers=headers
            )
        except PublishFailed:
            self._refused += 1
        else:
            self._confirming.add(time.monotonic_ns() - begun)
        finally:
            self._awaited -= 1

    def _message(self, headers: FieldTable | None, sent: int) -> tuple[bytes, FieldTable | None]:
        """Return the body and the headers of a message."""
        if self._plan.size >= _STAMP.size:
            body = _STAMP.pack(sent) + self._filler
            return body, headers
        return bytes(self._plan.size), {**(headers or {}), HEADER: sent}

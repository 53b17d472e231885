"""The implementation of `leveret publish`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.cli.client_command import failed, open_connection, run
from leveret.cli.failed import INCOMPLETE, USAGE_ERROR, Failed
from leveret.cli.messages.progress import Progress, rate
from leveret.cli.messages.record import Draft
from leveret.cli.messages.sources import BadInput, Source
from leveret.cli.output import Item
from leveret.client.errors import Error, InvalidMessage, PublishFailed
from leveret.client.properties import Properties, from_keywords

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel
    from leveret.client._async.publisher import Publisher

# Seconds to wait for pending confirms after an interrupt.
_LAST_CONFIRMS_TIMEOUT = 5.0


@dataclass(kw_only=True)
class PublishOptions:
    """The options of `leveret publish`.

    Attributes:
        urls: The brokers, tried in order.
        timeout: Seconds to wait for the broker; None is the timeout of the URL.
        form: The input format: lines, json or raw.
        bodies: The messages from the command line.
        files: The files to read messages from; `-` is standard input.
        exchange: The exchange; None uses the exchange of each message, or the default exchange.
        routing_key: The routing key; None uses the routing key of each message, or "".
        properties: Keywords of `Channel.publish`, which override the properties of each message.
        headers: Headers, which override the headers of each message.
        persistent: Whether messages are persistent; None uses the setting of each message, or True.
        mandatory: Whether messages are mandatory; None makes messages to the default exchange mandatory.
        window: The maximum number of unconfirmed messages.
        count: The number of times to publish each message.
        rate: The maximum number of messages per second; None is unlimited.
        quiet: Whether to omit progress and summary.
        typed: Whether the user types messages into a terminal.
    """

    urls: tuple[str, ...]
    timeout: float | None
    form: str
    bodies: Sequence[str]
    files: Sequence[Path]
    exchange: str | None
    routing_key: str | None
    properties: Item = field(default_factory=dict)
    headers: Item = field(default_factory=dict)
    persistent: bool | None = None
    mandatory: bool | None = None
    window: int = 200
    count: int = 1
    rate: float | None = None
    quiet: bool = False
    typed: bool = False


def publish(options: PublishOptions) -> None:
    """Publish all messages and wait for their confirms. Exits with a non-zero code if any message is not confirmed."""
    _PublishCommand(options).run()


class _PublishCommand:
    def __init__(self, options: PublishOptions) -> None:
        self._options = options
        self._source = Source(options.form, options.bodies, options.files, self._confirm)
        self._progress = Progress("publishing", not options.quiet and not options.typed, self._state)
        self._publishers: dict[str, Publisher] = {}
        self._sent = 0
        self._failed = 0
        # The properties from the command line, encoded once.
        self._common = self._properties(None)

    def run(self) -> None:
        run(self._run)

    def _state(self) -> tuple[int, float | None]:
        return self._sent, self._source.done

    async def _run(self) -> int:
        options = self._options
        async with (
            open_connection(options.urls, "publish", options.timeout, self._progress.on_event) as connection,
            connection.open_channel() as channel,
        ):
            with self._progress:
                try:
                    await self._publish_all(channel)
                    await self._confirm()
                except BadInput as error:
                    await self._confirm()
                    raise Failed(f"{error}{self._so_far()}", USAGE_ERROR) from None
                except InvalidMessage as error:
                    await self._confirm()
                    raise failed(error, self._so_far()) from None
                except Error as error:
                    raise failed(error, self._unknown()) from None
                except asyncio.CancelledError:
                    await self._last_confirms()
                    raise
        if not options.quiet:
            self._progress.say(self._summary())
        return INCOMPLETE if self._failed else 0

    async def _publish_all(self, channel: BaseChannel) -> None:
        options = self._options
        begun = time.monotonic()
        async for drafts in self._source.drafts():
            for draft in drafts:
                send = self._sender(channel, draft)
                for _ in range(options.count):
                    if options.rate is not None:
                        await self._until_due(begun + self._sent / options.rate)
                    while True:
                        try:
                            await send()
                            break
                        except PublishFailed as error:
                            # The error concerns earlier messages; this one was not sent.
                            self._on_refused(error)
                    self._sent += 1

    @staticmethod
    async def _until_due(due: float) -> None:
        late = due - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)

    def _sender(self, channel: BaseChannel, draft: Draft) -> Callable[[], Awaitable[None]]:
        options = self._options
        exchange = options.exchange if options.exchange is not None else draft.exchange or ""
        routing_key = options.routing_key if options.routing_key is not None else draft.routing_key or ""
        publisher = self._publishers.get(exchange)
        if publisher is None:
            publisher = self._publishers[exchange] = channel.publisher(
                exchange,
                window=options.window,
                properties=self._common,
                mandatory=not exchange if options.mandatory is None else options.mandatory,
            )
        if draft.properties is None:
            return lambda: publisher.publish(draft.body, routing_key)
        properties = self._properties(draft.properties)
        return lambda: publisher.publish(draft.body, routing_key, properties=properties)

    def _properties(self, given: Properties | None) -> Properties:
        options = self._options
        merged = from_keywords(given, options.properties)
        if options.headers:
            merged.headers = {**(merged.headers or {}), **options.headers}
        if options.persistent is not None:
            merged.delivery_mode = 2 if options.persistent else 1
        elif merged.delivery_mode is None:
            merged.delivery_mode = 2
        return merged

    async def _confirm(self) -> None:
        """Wait until all sent messages are confirmed or refused."""
        for publisher in self._publishers.values():
            try:
                await publisher.flush()
            except PublishFailed as error:
                self._on_refused(error)

    async def _last_confirms(self) -> None:
        """Wait briefly for pending confirms after an interrupt, and print the summary."""
        try:
            async with asyncio.timeout(_LAST_CONFIRMS_TIMEOUT):
                await self._confirm()
        except (Error, TimeoutError):
            pass
        if not self._options.quiet:
            self._progress.say(f"interrupted: {self._summary()}")

    def _on_refused(self, error: PublishFailed) -> None:
        if not self._failed:
            self._progress.say(f"the broker refused messages: {error}")
        self._failed += len(error.messages)

    def _so_far(self) -> str:
        return f" ({self._confirmed():,} messages before it were published)" if self._sent else ""

    def _unknown(self) -> str:
        """Return the suffix for an error that leaves messages unconfirmed."""
        if not self._sent:
            return ""
        return f" ({_messages(self._sent)} sent, up to {min(self._options.window, self._sent):,} of them unconfirmed)"

    def _confirmed(self) -> int:
        return self._sent - self._failed - sum(publisher.unconfirmed for publisher in self._publishers.values())

    def _summary(self) -> str:
        seconds = self._progress.seconds
        confirmed = self._confirmed()
        summary = f"{_messages(confirmed)} confirmed in {seconds:.1f} s ({rate(confirmed, seconds)})"
        if self._failed:
            summary += f", {self._failed:,} refused"
        unknown = self._sent - self._failed - confirmed
        if unknown:
            summary += f", {unknown:,} unknown"
        return summary


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"

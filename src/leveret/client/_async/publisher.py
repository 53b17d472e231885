"""A publisher with a window of pending confirms, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.engine.common.encoding import Body, Encoder, encode_flags
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.properties import Properties, PropertyValue, from_keywords
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel


class Publisher:
    """Publisher that does not wait for each confirm, up to a window of pending confirms.

    Refused and returned messages are reported later: the next `publish` or `flush` raises one exception with all of them in
    its `messages`. Tasks may share a publisher.
    """

    def __init__(
        self,
        channel: BaseChannel,
        core: PublisherCore,
        encoder: Encoder,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        properties: Properties | None,
        keywords: dict[str, PropertyValue],
    ) -> None:
        self._channel = channel
        self._driver = channel.connection.driver
        self._core = core
        self._encoder = encoder
        self._exchange = exchange
        self._routing_key = routing_key
        self._flags = encode_flags(mandatory, False)
        encoded = encoder.merge(properties, keywords)
        # None if each publish has properties of its own.
        self._encoded = None if encoder.varies else encoded
        self._properties = from_keywords(properties, keywords)

    @property
    def unconfirmed(self) -> int:
        """Number of pending confirms."""
        return self._core.in_flight

    async def publish(
        self, body: Body, routing_key: str | None = None, *, properties: Properties | None = None, **keywords: PropertyValue
    ) -> None:
        """Publish a message, waiting only while the window is full or the server blocks publishers.

        Raises:
            InvalidMessage: The message cannot be encoded; nothing was sent.
            Nacked: The server refused earlier messages. This one is not published.
            Returned: Earlier messages were returned. This one is not published.
        """
        core = self._core
        driver = self._driver
        if core.error is not None:
            self._raise_error()
        encoded = self._encoded
        if encoded is None or properties is not None or keywords:
            encoded = self._encoder.merge(properties or self._properties, keywords)
        outgoing = self._encoder.encode(
            body, self._exchange, self._routing_key if routing_key is None else routing_key, self._flags, encoded
        )
        while True:
            with driver.lock:
                waiter = None
                if core.channel.flowing:
                    if core.in_flight < core.window:
                        try:
                            core.publish(outgoing)
                        except BaseException as error:
                            driver.interrupted(error)
                            raise
                        return
                    waiter = core.window_waiter()
            if waiter is None:
                await self._channel.wait_flowing()
            else:
                await driver.wait(waiter, DEFAULT, "the publisher's window")

    async def flush(self, timeout: Limit = DEFAULT) -> None:
        """Wait for all pending confirms. Raises `Nacked` or `Returned` with the messages that failed."""
        core = self._core
        while core.in_flight:
            with self._driver.lock:
                if not core.in_flight:
                    break
                waiter = core.idle_waiter()
            await self._driver.wait(waiter, timeout, "the publisher's confirms")
        if core.error is not None:
            self._raise_error()

    def _raise_error(self) -> None:
        with self._driver.lock:
            if self._core.error is not None:
                raise self._core.take_error()

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is None:
            await self.flush()

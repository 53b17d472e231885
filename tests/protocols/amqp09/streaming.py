"""Shared by the tests of class stream of 0-9."""

from __future__ import annotations

from typing import Any

from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.support import Channel
from tests.protocols.support import bytes_of

STREAM = 80


def publish(
    channel: Channel,
    body: bytes = b"s",
    key: str = "q",
    *,
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
    ticket: int = 0,
    **properties: Any,
) -> None:
    """Send a `stream.publish`, which reaches the broker with the next `run`, `flush` or call."""
    header = encode_header(STREAM, len(body), properties, QPID, V0_9)
    channel.client.engine.send_content(
        channel.number,
        "stream.publish",
        {"ticket": ticket, "exchange": exchange, "routing_key": key, "mandatory": mandatory, "immediate": immediate},
        header,
        body,
    )


def consume(channel: Channel, queue: str = "q", *, tag: str = "", **arguments: Any) -> str:
    answer = channel.call("stream.consume", "stream.consume-ok", queue=queue, consumer_tag=tag, **arguments)
    return str(answer["consumer_tag"])


def qos(channel: Channel, rate: int = 0, *, size: int = 0, count: int = 0, everywhere: bool = False) -> None:
    channel.call(
        "stream.qos", "stream.qos-ok", prefetch_size=size, prefetch_count=count, consume_rate=rate, **{"global": everywhere}
    )


def deliveries(channel: Channel) -> list[ContentMethod]:
    """Remove and return the deliveries on this channel."""
    channel.run()
    found = []
    while (delivered := channel.client.take("stream.deliver", channel.number)) is not None:
        assert isinstance(delivered, ContentMethod)
        found.append(delivered)
    return found


def delivered(channel: Channel) -> list[bytes]:
    return [bytes_of(delivery.body) for delivery in deliveries(channel)]


def properties_of(content: ContentMethod) -> dict[str, Any]:
    return decode_header(content.header, QPID, V0_9)[2]

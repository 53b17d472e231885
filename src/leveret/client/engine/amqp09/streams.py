"""The classes stream and tunnel, which have no acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from leveret.client.engine.amqp09.outgoing import ContentPublish, content_header
from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.engine.common.encoding import Body, encode_body, encode_flags
from leveret.client.message import Message
from leveret.client.properties import Properties, PropertyValue
from leveret.wire.amqp0.classes import STREAM, to_basic
from leveret.wire.amqp0.commands import ContentMethod, Deliver
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import Arguments, FieldMapping

if TYPE_CHECKING:
    from leveret.client.engine.amqp09.channel import Amqp09ChannelCore

TUNNEL_CLASS = 110


class StreamConsumerCore(ConsumerCore):
    """One `stream.consume`. Messages need no acknowledgement. Buffered messages count for backpressure."""

    kind: ClassVar[str] = "stream"

    def __init__(self, channel: Amqp09ChannelCore, queue: str, arguments: Arguments, message_class: type[Message]) -> None:
        super().__init__(channel, queue, 0, arguments, message_class)
        self._no_ack = self._counted = True

    def clone(self) -> ConsumerCore:
        return StreamConsumerCore(cast("Amqp09ChannelCore", self.channel), self.queue, self.arguments, self._message_class)


def stream_delivered(channel: Amqp09ChannelCore, command: ContentMethod) -> None:
    """Handle `stream.deliver`, whose routing key is the name of the queue."""
    arguments = command.arguments
    channel.delivered(
        Deliver(
            channel.number,
            arguments["consumer_tag"].encode("utf-8", "surrogateescape"),
            arguments["delivery_tag"],
            False,
            encode_address(arguments["exchange"], arguments["queue"]),
            to_basic(command.header),
            command.size,
            command.body,
        )
    )


def stream_publish(
    body: Body,
    exchange: str,
    routing_key: str,
    mandatory: bool,
    immediate: bool,
    properties: Properties | None,
    keywords: dict[str, PropertyValue],
) -> ContentPublish:
    """Return an encoded `stream.publish`. It is never published again, because it would be outdated."""
    data = encode_body(body)
    header = content_header(STREAM, len(data), properties, keywords)
    outgoing = ContentPublish("stream.publish", exchange, routing_key, encode_flags(mandatory, immediate), header, data, {})
    outgoing.at_most_once = True
    # Only a caller that requested returns waits for the outcome.
    outgoing.awaited = mandatory or immediate
    return outgoing


def tunnel_request(
    data_name: str,
    body: Body,
    headers: FieldMapping | None,
    meta_data: FieldMapping | None,
    proxy_name: str,
    durable: bool,
    broadcast: bool,
) -> tuple[Arguments, bytes, bytes]:
    """Return arguments, header and body of a `tunnel.request`. Raises `InvalidMessage` for an invalid body."""
    data = encode_body(body)
    properties = {
        "headers": headers or None,
        "proxy_name": proxy_name or None,
        "data_name": data_name,
        "durable": int(durable),
        "broadcast": int(broadcast),
    }
    return {"meta_data": dict(meta_data or {})}, encode_header(TUNNEL_CLASS, len(data), properties, QPID, V0_9), data

"""Class stream and class tunnel: what is sent and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from leveret.client.core.amqp09.outgoing import ContentPublish, content_header
from leveret.client.core.consumer import ConsumerCore
from leveret.client.core.encoding import Body, encode_address, encode_body, encode_flags
from leveret.client.message import Message
from leveret.client.properties import Properties
from leveret.wire.amqp0.classes import STREAM, to_basic
from leveret.wire.amqp0.commands import ContentMethod, Deliver
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.table_0_9 import V0_9

if TYPE_CHECKING:
    from leveret.client.core.amqp09.channel import Amqp09Channel

TUNNEL = 110


class StreamConsumerCore(ConsumerCore):
    """One `stream.consume`. Nothing of it is acknowledged: what waits here counts for the connection."""

    kind: ClassVar[str] = "stream"

    def __init__(self, channel: Amqp09Channel, queue: str, arguments: dict[str, Any], message_class: type[Message]) -> None:
        super().__init__(channel, queue, 0, arguments, message_class)
        self._no_ack = self._counted = True

    def clone(self) -> ConsumerCore:
        return StreamConsumerCore(cast("Amqp09Channel", self.channel), self.queue, self.arguments, self._message_class)


def stream_delivered(channel: Amqp09Channel, command: ContentMethod) -> None:
    """`stream.deliver`, which names the queue where others name the routing key."""
    arguments = command.arguments
    channel.delivered(Deliver(
        channel.number, arguments["consumer_tag"].encode("utf-8", "surrogateescape"), arguments["delivery_tag"], False,
        encode_address(arguments["exchange"], arguments["queue"]), to_basic(command.header), command.size, command.body))


def stream_publish(body: Body, exchange: str, routing_key: str, mandatory: bool, immediate: bool,
                   properties: Properties | None, keywords: dict[str, Any]) -> ContentPublish:
    """A `stream.publish`. It is not sent again over another connection: by then it is worth nothing."""
    data = encode_body(body)
    header = content_header(STREAM, len(data), properties, keywords)
    outgoing = ContentPublish("stream.publish", exchange, routing_key, encode_flags(mandatory, immediate), header, data, {})
    outgoing.at_most_once = True
    # Who wants to know what becomes of it waits; nobody else does.
    outgoing.awaited = mandatory or immediate
    return outgoing


def tunnel_request(data_name: str, body: Body, headers: dict[str, Any] | None, meta_data: dict[str, Any] | None,
                   proxy_name: str, durable: bool, broadcast: bool) -> tuple[dict[str, Any], bytes, bytes]:
    """Arguments, header and body of a `tunnel.request`. Raises `InvalidMessage` for a body that is none."""
    data = encode_body(body)
    properties = {"headers": headers or None, "proxy_name": proxy_name or None, "data_name": data_name,
                  "durable": int(durable), "broadcast": int(broadcast)}
    return {"meta_data": dict(meta_data or {})}, encode_header(TUNNEL, len(data), properties, QPID, V0_9), data

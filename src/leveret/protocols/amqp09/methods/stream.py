"""Class stream of 0-9: messages that may be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.message import FORMAT_CLASS_AMQP09, Message, make_address
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.consumers import prepare_other_classes, publisher_of
from leveret.protocols.amqp09.contents.streams import StreamConsumer
from leveret.protocols.amqp09.methods import contents
from leveret.protocols.amqp09.realms import WRITE
from leveret.wire.amqp0.classes import STREAM
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, ContentMethod
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.table_amqp09 import V0_9


def qos(channel: Channel, prefetch_size: int, prefetch_count: int, consume_rate: int, **flags: bool) -> None:
    """Perform stream.qos. The windows apply to this class only, whose deliveries are never unacknowledged."""
    connection = channel.opened_on
    pace = connection.own_pace() if flags["global"] else channel.own_pace()
    pace.set(consume_rate, prefetch_size, prefetch_count)
    connection.engine.send(channel.number, "stream.qos-ok", {})
    pace.fire(0)


def consume(
    channel: Channel,
    ticket: int,
    queue: str,
    consumer_tag: str,
    no_local: bool,
    exclusive: bool,
    nowait: bool,
    filter: FieldTable,
) -> None:
    """Perform stream.consume."""
    contents.consume(
        channel, ticket, queue, consumer_tag, no_local, True, exclusive, nowait, filter, StreamConsumer, "stream"
    )


def cancel(channel: Channel, consumer_tag: str, nowait: bool) -> None:
    """Perform stream.cancel."""
    contents.cancel(channel, consumer_tag, nowait, "stream.cancel-ok")


def publish(channel: Channel, command: ContentMethod) -> None:
    """Perform stream.publish. Messages are never persistent, because losing them is acceptable."""
    arguments = command.arguments
    exchange: str = arguments["exchange"]
    channel.tickets.check(arguments["ticket"], WRITE, exchange)
    connection = channel.opened_on
    address = make_address(exchange, arguments["routing_key"])
    route = connection.find_route(address)
    priority: int = decode_header(command.header, QPID, V0_9)[2].get("priority", -1)
    message = Message(
        address,
        command.header,
        command.body,
        command.size,
        False,
        priority,
        0,
        -1,
        publisher_of(connection, STREAM),
        FORMAT_CLASS_AMQP09,
    )
    flags = MANDATORY * arguments["mandatory"] | IMMEDIATE * arguments["immediate"]
    prepare_other_classes(channel.vhost)
    channel.check_pause()
    if channel.transacted:
        channel.count_publish(route)
        channel.publish_in_transaction(message, route, flags, message.size)
    else:
        for queue in contents.publish(channel, route, message, flags):
            queue.limits.note_droppable()
    connection.published(channel)


HANDLERS: Final[dict[str, Callable[..., None]]] = {"stream.qos": qos, "stream.consume": consume, "stream.cancel": cancel}
CONTENT_HANDLERS: Final[dict[str, Callable[[Channel, ContentMethod], None]]] = {"stream.publish": publish}

"""Class exchange: declare, delete, and RabbitMQ's bind and unbind (0-9-1 section 1.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import AccessRefused
from leveret.broker.values import FieldTable
from leveret.management.operations import definitions
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.methods.names import without_line_ends
from leveret.protocols.amqp091.methods.replies import reply_when_removed, reply_when_stored
from leveret.protocols.convert.values import sized_table
from leveret.wire.amqp0.values import encoded_fields


def declare(
    channel: Channel,
    exchange: str,
    type: str,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    no_wait: bool,
    arguments: FieldTable,
) -> None:
    """Perform exchange.declare."""
    vhost = channel.vhost
    exchange = without_line_ends(vhost, exchange)
    if passive:
        if not exchange:
            raise AccessRefused("the default exchange cannot be declared, not even passively")
        vhost.exchange(exchange)
    else:
        definitions.declare_exchange(
            channel.connection,
            exchange,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
    reply_when_stored(channel, "exchange.declare-ok", {}, durable, no_wait)


def delete(channel: Channel, exchange: str, if_unused: bool, no_wait: bool) -> None:
    """Perform exchange.delete."""
    exchange = without_line_ends(channel.vhost, exchange)
    definitions.delete_exchange(channel.connection, exchange, if_unused=if_unused)
    reply_when_removed(channel, "exchange.delete-ok", {}, True, no_wait)


def bind(channel: Channel, destination: str, source: str, routing_key: str, no_wait: bool, arguments: FieldTable) -> None:
    """Perform exchange.bind, an extension of RabbitMQ."""
    definitions.bind_exchange(
        channel.connection, destination, source, routing_key, sized_table(arguments), encoded_fields(arguments)
    )
    reply_when_stored(channel, "exchange.bind-ok", {}, True, no_wait)


def unbind(channel: Channel, destination: str, source: str, routing_key: str, no_wait: bool, arguments: FieldTable) -> None:
    """Perform exchange.unbind, an extension of RabbitMQ."""
    definitions.unbind_exchange(channel.connection, destination, source, routing_key, arguments)
    reply_when_stored(channel, "exchange.unbind-ok", {}, True, no_wait)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "exchange.declare": declare,
    "exchange.delete": delete,
    "exchange.bind": bind,
    "exchange.unbind": unbind,
}

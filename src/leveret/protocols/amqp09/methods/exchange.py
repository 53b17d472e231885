"""Class exchange of 0-9. A declaration of an existing exchange only checks its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import NotAllowed, NotFound
from leveret.broker.values import FieldTable
from leveret.management.operations import definitions
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.realms import ACTIVE, PASSIVE
from leveret.protocols.amqp091.methods.replies import reply_when_removed, reply_when_stored


def declare(
    channel: Channel,
    ticket: int,
    exchange: str,
    type: str,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    nowait: bool,
    arguments: FieldTable,
) -> None:
    """Perform exchange.declare."""
    vhost = channel.vhost
    channel.tickets.check(ticket, PASSIVE if passive else ACTIVE, exchange)
    existing = vhost.exchanges.get(exchange)
    if passive:
        vhost.exchange(exchange)
    elif exchange and existing is not None:
        channel.connection.check("configure", exchange)
        if existing.type != type:  # the properties stay those of the first declaration
            raise NotAllowed(f"exchange '{exchange}' in vhost '{vhost.name}' has the type '{existing.type}', not '{type}'")
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
    reply_when_stored(channel, "exchange.declare-ok", {}, durable, nowait)


def delete(channel: Channel, ticket: int, exchange: str, if_unused: bool, nowait: bool) -> None:
    """Perform exchange.delete."""
    channel.tickets.check(ticket, ACTIVE, exchange)
    if exchange not in channel.vhost.exchanges:
        raise NotFound(f"no exchange '{exchange}' in vhost '{channel.vhost.name}'")
    definitions.delete_exchange(channel.connection, exchange, if_unused=if_unused)
    reply_when_removed(channel, "exchange.delete-ok", {}, True, nowait)


HANDLERS: Final[dict[str, Callable[..., None]]] = {"exchange.declare": declare, "exchange.delete": delete}

"""Class queue of 0-9. A declaration of an existing queue does not check its properties.

With `compat.strict`, as in the specification, exclusive implies auto-delete, and failed binds and the use of another
connection's exclusive queue close the connection. Other brokers never implemented this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import BrokerError, ChannelError, NotAllowed, NotFound, ResourceLocked
from leveret.broker.indexing import check_indexed
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.management.operations import definitions
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.realms import ACTIVE, PASSIVE, READ
from leveret.protocols.amqp091.methods import queue as queue091
from leveret.protocols.amqp091.methods.replies import reply_when_stored
from leveret.wire.amqp0.values import encoded_fields


def name_of(channel: Channel, queue: str) -> str:
    """Return the name of the queue; an empty one means the last queue declared on the channel.

    Raises:
        NotAllowed: the name is empty, and no queue was declared on the channel.
    """
    if queue:
        return queue
    if not channel.last_queue:
        raise NotAllowed("the queue name is empty, but no queue was declared on this channel")
    return channel.last_queue


def find(channel: Channel, queue: str) -> Queue:
    """Return a queue. With `compat.strict`, using another connection's exclusive queue closes the connection."""
    channel.release_exclusive(queue)
    try:
        return channel.vhost.queue(queue, channel.connection)
    except ResourceLocked as error:
        if channel.vhost.strict:
            raise ChannelError(str(error)) from None
        raise


def declare(
    channel: Channel,
    ticket: int,
    queue: str,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    nowait: bool,
    arguments: FieldTable,
) -> None:
    """Perform queue.declare."""
    connection = channel.connection
    vhost = channel.vhost
    if not queue:
        if passive:
            queue = name_of(channel, queue)
        else:
            queue = vhost.new_queue_name()
    channel.tickets.check(ticket, PASSIVE if passive else ACTIVE, queue)
    channel.release_exclusive(queue)
    strict = vhost.strict
    if durable and not auto_delete and channel.opened_on.is_qpid_client():
        exclusive = False  # a durable subscription, which outlives its connection
    if queue in vhost.queues or passive:
        found = find(channel, queue)
        if not passive:
            connection.check("configure", queue)
            if exclusive and found.lifetime.exclusive_owner is None and not strict:
                raise ResourceLocked(
                    f"cannot obtain exclusive access to queue '{queue}' in vhost '{vhost.name}': it is not exclusive"
                )
        durable = False
    else:
        if queue.startswith("amq.") and queue not in vhost.new_names:
            raise NotAllowed(f"queue name '{queue}' contains reserved prefix 'amq.*'")
        found = definitions.declare_queue(
            connection,
            queue,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete or (exclusive and strict),
            arguments=arguments,
        )
    channel.set_last_queue(found.name)
    found.lifetime.touch()
    check_indexed(found)
    found.catch_up()
    reply_when_stored(
        channel,
        "queue.declare-ok",
        {"queue": found.name, "message_count": min(found.ready_count, 0xFFFFFFFF), "consumer_count": len(found.consumers)},
        durable,
        nowait,
    )


def bind(
    channel: Channel, ticket: int, queue: str, exchange: str, routing_key: str, nowait: bool, arguments: FieldTable
) -> None:
    """Perform queue.bind. With `compat.strict`, any error closes the connection (queue.bind.failure)."""
    try:
        name = name_of(channel, queue)
        if not queue and not routing_key:
            routing_key = name
        channel.tickets.check(ticket, ACTIVE, name)
        found = find(channel, name)
        source = channel.vhost.exchange(exchange)
        if source.internal:
            raise NotAllowed(f"exchange '{exchange}' in vhost '{channel.vhost.name}' is internal")
        if found.durable and not source.durable:
            raise NotAllowed(f"queue '{name}' in vhost '{channel.vhost.name}' is durable and exchange '{exchange}' is not")
        if exchange or routing_key != name:  # every queue is bound to the default exchange by its name
            definitions.bind_queue(
                channel.connection, name, exchange, routing_key, arguments, encoded_fields(arguments), True
            )
    except BrokerError as error:
        error.closes_connection = channel.vhost.strict
        raise
    reply_when_stored(channel, "queue.bind-ok", {}, found.stored, nowait)


def unbind(channel: Channel, ticket: int, queue: str, exchange: str, routing_key: str, arguments: FieldTable) -> None:
    """Perform queue.unbind. A missing binding closes the connection, a missing queue or exchange the channel."""
    name = name_of(channel, queue)
    if not queue and not routing_key:
        routing_key = name
    channel.tickets.check(ticket, ACTIVE, name)
    vhost = channel.vhost
    find(channel, name)
    vhost.exchange(exchange)
    is_own = not exchange and routing_key == name
    definitions.check_queue_binding(channel.connection, name, exchange, routing_key, not is_own)
    if not vhost.is_bound(name, exchange, routing_key, arguments):
        raise NotFound(
            f"no binding '{routing_key}' between exchange '{exchange}' and queue '{name}' in vhost '{vhost.name}'",
            closes_connection=True,
        )
    definitions.unbind_queue(channel.connection, name, exchange, routing_key, arguments, True)
    reply_when_stored(channel, "queue.unbind-ok", {}, True, False)


def purge(channel: Channel, ticket: int, queue: str, nowait: bool) -> None:
    """Perform queue.purge."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, READ, name)
    queue091.purge(channel, name, nowait)


def delete(channel: Channel, ticket: int, queue: str, if_unused: bool, if_empty: bool, nowait: bool) -> None:
    """Perform queue.delete."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, ACTIVE, name)
    find(channel, name)
    if channel.opened_on.is_qpid_client() and not channel.connection.engine.uses_requests:
        nowait = False  # Qpid brokers always reply, and Qpid clients up to 0.32 wait for it
    queue091.delete(channel, name, if_unused, if_empty, nowait)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "queue.declare": declare,
    "queue.bind": bind,
    "queue.unbind": unbind,
    "queue.purge": purge,
    "queue.delete": delete,
}

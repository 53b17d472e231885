"""Class queue: declare, bind, unbind, purge, delete (0-9-1 section 1.7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from leveret.broker.errors import NotFound
from leveret.broker.indexing import check_indexed
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.management.operations import definitions
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.channel.direct_replies import REPLY_NAME
from leveret.protocols.amqp091.methods.names import without_line_ends
from leveret.protocols.amqp091.methods.replies import reply_when_removed, reply_when_stored
from leveret.protocols.convert.values import sized_table
from leveret.wire.amqp0.values import encoded_fields


def name_of(channel: Channel, queue: str) -> str:
    """Return the name of the queue; an empty one means the last queue declared on the channel (domain queue-name)."""
    if queue:
        return queue
    if not channel.last_queue:
        raise NotFound("the queue name is empty, but no queue was declared on this channel")
    return channel.last_queue


def find(channel: Channel, queue: str) -> Queue:
    """Return the queue named in a method, if this connection may use it."""
    return channel.vhost.queue(name_of(channel, queue), channel.connection)


def declare(
    channel: Channel,
    queue: str,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    no_wait: bool,
    arguments: FieldTable,
) -> None:
    """Perform queue.declare."""
    if queue == REPLY_NAME:
        # A client may declare it before it consumes from it, which creates the queue of the channel.
        channel.set_last_queue(queue)
        reply = {"queue": queue, "message_count": 0, "consumer_count": 1}
        reply_when_stored(channel, "queue.declare-ok", reply, False, no_wait)
        return
    connection = channel.connection
    vhost = channel.vhost
    if passive or queue.startswith(REPLY_NAME):
        found = vhost.queue(without_line_ends(vhost, name_of(channel, queue)), connection)
        durable = False
    else:
        queue = without_line_ends(vhost, queue)
        if not queue:
            queue = vhost.new_queue_name()
        found = definitions.declare_queue(
            connection,
            queue,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=sized_table(arguments),
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
        no_wait,
    )


def bind(channel: Channel, queue: str, exchange: str, routing_key: str, no_wait: bool, arguments: FieldTable) -> None:
    """Perform queue.bind. If queue name and routing key are empty, the key is the name of the last queue declared."""
    name = name_of(channel, queue)
    if not queue and not routing_key:
        routing_key = name
    found = definitions.bind_queue(
        channel.connection, name, exchange, routing_key, sized_table(arguments), encoded_fields(arguments)
    )
    reply_when_stored(channel, "queue.bind-ok", {}, found.stored, no_wait)


def unbind(channel: Channel, queue: str, exchange: str, routing_key: str, arguments: FieldTable) -> None:
    """Perform queue.unbind. In strict mode, a missing queue or exchange closes the connection."""
    try:
        name = name_of(channel, queue)
        if not queue and not routing_key:
            routing_key = name
        definitions.unbind_queue(channel.connection, name, exchange, routing_key, arguments)
    except NotFound as error:
        error.closes_connection = channel.vhost.strict  # rule queue.unbind.01
        raise
    reply_when_stored(channel, "queue.unbind-ok", {}, True, False)


def purge(channel: Channel, queue: str, no_wait: bool) -> None:
    """Perform queue.purge."""
    count, stored = definitions.purge_queue(channel.connection, name_of(channel, queue))
    reply_when_removed(channel, "queue.purge-ok", {"message_count": min(count, 0xFFFFFFFF)}, stored, no_wait)


def delete(channel: Channel, queue: str, if_unused: bool, if_empty: bool, no_wait: bool) -> None:
    """Perform queue.delete."""
    name = without_line_ends(channel.vhost, name_of(channel, queue))
    connection = channel.connection
    found = channel.vhost.find_queue(name)
    if found is None or no_wait:
        answered = None
    else:
        # Blocking clients mistake a cancel notification before the reply for the result of their call.
        connection.defer_cancels(found)
        answered = partial(connection.release_notices, found)
    try:
        count, stored = definitions.delete_queue(connection, name, if_unused=if_unused, if_empty=if_empty)
    except Exception:
        if answered is not None:
            answered()
        raise
    reply_when_removed(channel, "queue.delete-ok", {"message_count": min(count, 0xFFFFFFFF)}, stored, no_wait, answered)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "queue.declare": declare,
    "queue.bind": bind,
    "queue.unbind": unbind,
    "queue.purge": purge,
    "queue.delete": delete,
}

"""Class queue: declare, bind, unbind, purge, delete (0-9-1 section 1.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leveret.broker.errors import NotFound
from leveret.broker.queues.base import Queue
from leveret.protocols.v0_9_1.channel import REPLY_TO, Channel
from leveret.protocols.v0_9_1.names import without_line_ends
from leveret.protocols.v0_9_1.replies import notify_after_reply, reply_when_kept

REPLY_PREFIX: Final = REPLY_TO.decode()


def name_of(channel: Channel, queue: str) -> str:
    """The queue that a method means: an empty name is the last one declared on the channel (domain queue-name)."""
    if queue:
        return queue
    if not channel.last_queue:
        raise NotFound("no queue name given, and no queue was declared on this channel before")
    return channel.last_queue


def find(channel: Channel, queue: str) -> Queue:
    """The queue that a method means, if this connection may use it."""
    return channel.vhost.queue(name_of(channel, queue), channel.connection)


def declare(channel: Channel, queue: str, passive: bool, durable: bool, exclusive: bool, auto_delete: bool,
            no_wait: bool, arguments: dict[str, Any]) -> None:
    """queue.declare"""
    connection = channel.connection
    vhost = channel.vhost
    if passive or queue.startswith(REPLY_PREFIX):
        if queue == REPLY_PREFIX and channel.reply_queue is not None:
            queue = channel.reply_queue.name
        found = vhost.queue(without_line_ends(vhost, name_of(channel, queue)), connection)
        durable = False
    else:
        queue = without_line_ends(vhost, queue)
        if not queue:
            queue = vhost.new_queue_name()
        connection.check("configure", queue)
        target = arguments.get("x-dead-letter-exchange")
        if isinstance(target, str):
            connection.check("read", queue)
            connection.check("write", target)
        found = vhost.declare_queue(queue, connection, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                                    arguments=arguments)
    channel.last_queue = found.name
    found.touch()
    found.catch_up()
    reply_when_kept(channel, "queue.declare-ok", {
        "queue": found.name, "message_count": min(found.ready_count, 0xFFFFFFFF),
        "consumer_count": len(found.consumers)}, durable, no_wait)


def bind(channel: Channel, queue: str, exchange: str, routing_key: str, no_wait: bool,
         arguments: dict[str, Any]) -> None:
    """queue.bind; without queue name and routing key, the key is the name of the last queue."""
    channel.vhost.check_bindable(exchange)
    name = name_of(channel, queue)
    if not queue and not routing_key:
        routing_key = name
    channel.connection.check("write", name)
    channel.connection.check("read", exchange)
    channel.vhost.exchange(exchange)
    found = channel.vhost.queue(name, channel.connection)
    channel.vhost.bind(found, exchange, routing_key, arguments)
    reply_when_kept(channel, "queue.bind-ok", {}, found.stored, no_wait)


def unbind(channel: Channel, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
    """queue.unbind; what is not bound is unbound already, whoever may use the queue, except in strict mode."""
    vhost = channel.vhost
    vhost.check_bindable(exchange)
    try:
        name = name_of(channel, queue)
        if not queue and not routing_key:
            routing_key = name
        channel.connection.check("write", name)
        channel.connection.check("read", exchange)
        if vhost.strict or vhost.is_bound(name, exchange, routing_key, arguments):
            vhost.unbind(vhost.queue(name, channel.connection), exchange, routing_key, arguments)
    except NotFound as error:
        error.closes_connection = vhost.strict  # rule queue.unbind.01
        raise
    reply_when_kept(channel, "queue.unbind-ok", {}, True, False)


def purge(channel: Channel, queue: str, no_wait: bool) -> None:
    """queue.purge"""
    name = name_of(channel, queue)
    channel.connection.check("read", name)
    found = channel.vhost.queue(name, channel.connection)
    found.catch_up()
    count = found.purge()
    reply_when_kept(channel, "queue.purge-ok", {"message_count": min(count, 0xFFFFFFFF)}, found.stored, no_wait)


def delete(channel: Channel, queue: str, if_unused: bool, if_empty: bool, no_wait: bool) -> None:
    """queue.delete"""
    name = without_line_ends(channel.vhost, name_of(channel, queue))
    channel.connection.check("configure", name)
    found = channel.vhost.queues.get(name)
    if found is not None:
        found.catch_up()
    connection = channel.connection
    notices: list[tuple[Channel, str]] = []
    connection.held_notices = notices
    try:
        count = channel.vhost.delete_queue(name, connection, if_unused=if_unused, if_empty=if_empty)
    finally:
        connection.held_notices = None
    reply_when_kept(channel, "queue.delete-ok", {"message_count": min(count, 0xFFFFFFFF)},
                    found is not None and found.stored, no_wait)
    notify_after_reply(channel, notices)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "queue.declare": declare, "queue.bind": bind, "queue.unbind": unbind, "queue.purge": purge, "queue.delete": delete,
}

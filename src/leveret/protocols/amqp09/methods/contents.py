"""Consume, cancel and publish for the classes file and stream."""

from __future__ import annotations

from leveret.broker.arguments import BROWSE
from leveret.broker.errors import NotAllowed, PreconditionFailed, ResourceLocked
from leveret.broker.leases.reading import LEASE
from leveret.broker.message import Message
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, push
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.consumers import ClassConsumer
from leveret.protocols.amqp09.methods.queue import name_of
from leveret.protocols.amqp09.realms import READ
from leveret.protocols.amqp091.channel.channel import WIDE_FANOUT
from leveret.protocols.amqp091.methods import basic as basic091


def consume(
    channel: Channel,
    ticket: int,
    queue: str,
    consumer_tag: str,
    no_local: bool,
    no_ack: bool,
    exclusive: bool,
    nowait: bool,
    filter: FieldTable,
    kind: type[ClassConsumer],
    name: str,
) -> None:
    """Perform the consume method of class `name`."""
    queue = name_of(channel, queue)
    channel.tickets.check(ticket, READ, queue)
    if consumer_tag and channel.tag_owner(consumer_tag) is not None:
        raise NotAllowed(f"attempt to reuse consumer tag '{consumer_tag}': tags are unique in the connection")
    channel.release_exclusive(queue)
    found = channel.vhost.find_queue(queue)
    if found is not None and (found.consumers.is_exclusive() or (exclusive and found.consumers.is_consumed())):
        raise ResourceLocked(f"queue '{queue}' in vhost '{channel.vhost.name}' in exclusive use")
    if LEASE in filter or filter.get(BROWSE) is True:
        raise PreconditionFailed(f"{name}.consume: only class basic supports browsing and leases")
    basic091.consume(channel, queue, consumer_tag, no_local, no_ack, exclusive, nowait, filter, kind, f"{name}.consume-ok")


def cancel(channel: Channel, consumer_tag: str, nowait: bool, answer: str) -> None:
    """Perform a cancel method, which also cancels consumers of other channels."""
    owner = channel.tag_owner(consumer_tag)
    if owner is not None:
        owner.cancel(consumer_tag)
    if not nowait:
        channel.connection.engine.send(channel.number, answer, {"consumer_tag": consumer_tag})


def publish(channel: Channel, route: Route, message: Message, flags: int) -> list[Queue]:
    """Publish a message, and return its queues."""
    channel.count_publish(route)
    queues = channel.route_message(route, message)
    if flags or not queues:
        queues = channel.return_undeliverable(message, queues, flags)
    push(route, message, queues)
    if len(queues) > WIDE_FANOUT:
        channel.broker.work += len(queues)
    return queues

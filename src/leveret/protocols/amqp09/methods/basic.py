"""Class basic of 0-9: consumer tags are unique in the connection, and recover has no reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.arguments import BROWSE
from leveret.broker.errors import NotAllowed, PreconditionFailed
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.consumers import NO_CONSUME, BasicConsumer, is_set
from leveret.protocols.amqp09.methods.queue import name_of
from leveret.protocols.amqp09.realms import READ
from leveret.protocols.amqp091.methods import basic as basic091
from leveret.wire.amqp0.classes import BASIC


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
) -> None:
    """Perform basic.consume."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, READ, name)
    if consumer_tag and channel.tag_owner(consumer_tag) is not None:
        raise NotAllowed(f"attempt to reuse consumer tag '{consumer_tag}': tags are unique in the connection")
    channel.release_exclusive(name)
    if is_set(filter, NO_CONSUME):
        filter[BROWSE] = no_ack = True
    basic091.consume(channel, name, consumer_tag, no_local, no_ack, exclusive, nowait, filter, BasicConsumer)


def cancel(channel: Channel, consumer_tag: str, nowait: bool) -> None:
    """Perform basic.cancel, which also cancels consumers of other channels."""
    owner = channel.tag_owner(consumer_tag)
    if owner is not None:
        owner.cancel(consumer_tag)
    if not nowait:
        channel.connection.engine.send(channel.number, "basic.cancel-ok", {"consumer_tag": consumer_tag})


def get(channel: Channel, ticket: int, queue: str, no_ack: bool) -> None:
    """Perform basic.get."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, READ, name)
    basic091.get(channel, name, no_ack, BASIC if channel.vhost.has_other_classes else 0)


def recover(channel: Channel, requeue: bool) -> None:
    """Perform basic.recover, which has no reply in 0-9."""
    if channel.transacted:
        raise PreconditionFailed("basic.recover is not allowed on a transacted channel: roll back instead")
    if requeue or channel.active:
        basic091.recover_async(channel, requeue)
    else:
        channel.recover_when_active()  # the client has paused deliveries


def recover_sync(channel: Channel, requeue: bool) -> None:
    """Perform basic.recover-sync, Qpid's recover with a reply."""
    recover(channel, requeue)
    channel.connection.engine.send(channel.number, "basic.recover-sync-ok", {})


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "basic.qos": basic091.qos,
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.get": get,
    "basic.recover": recover,
    "basic.recover-sync": recover_sync,
}

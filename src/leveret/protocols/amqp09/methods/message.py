"""Class message of 0-9: transfers in both directions."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from leveret.broker.arguments import BROWSE
from leveret.broker.bodies import Body, StoredBody
from leveret.broker.errors import (
    AccessRefused,
    CommandInvalid,
    ContentTooLarge,
    NotAllowed,
    PreconditionFailed,
    SyntaxInvalid,
    Undelivered,
)
from leveret.broker.leases.reading import LEASE
from leveret.broker.message import FORMAT_CLASS_AMQP09, Message, make_address
from leveret.broker.queues.capabilities import GET, check_supported
from leveret.broker.queues.loading import Waiting
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import is_unroutable, push
from leveret.broker.values import FieldTable
from leveret.broker.watches import trace_get
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.consumers import NO_CONSUME, is_set, prepare_other_classes, publisher_of
from leveret.protocols.amqp09.contents.answers import Answer
from leveret.protocols.amqp09.contents.transfers import RESUMES, MessageConsumer
from leveret.protocols.amqp09.methods.queue import name_of
from leveret.protocols.amqp09.realms import READ, WRITE
from leveret.protocols.amqp091.channel.channel import WIDE_FANOUT
from leveret.protocols.amqp091.channel.direct_replies import REPLY_NAME
from leveret.protocols.amqp091.content import MAX_EXPIRATION
from leveret.protocols.amqp091.methods import basic as basic091
from leveret.protocols.amqp091.methods.basic import MAX_TAKEN_BACK, TAKEN_BACK_SHIFT
from leveret.wire.amqp0.classes import MESSAGE, encode_transfer
from leveret.wire.amqp0.values import Arguments

INLINE: Final = 0
PERSISTENT: Final = 2
# Reject codes.
GENERIC: Final = 0
NOT_IMMEDIATE: Final = 1


class Rejected(Exception):
    """A transfer that is answered with `message.reject`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# Publish


def transfer(channel: Channel, **arguments: Any) -> None:
    """Perform message.transfer. The destination is an exchange."""
    channel.tickets.check(arguments["ticket"], WRITE, arguments["destination"])
    check(channel, arguments)
    kind, data = arguments["body"]
    if kind != INLINE:
        # The message is published when its reference is closed.
        channel.messages.find_reference(data.decode("utf-8", "surrogateescape")).add(arguments, channel.request)
        return
    limit = channel.connection.settings.max_message_size
    if len(data) > limit:
        raise ContentTooLarge(
            f"a body of {len(data)} bytes exceeds the maximum of {limit}; the setting is amqp.max_message_size"
        )
    answers = channel.messages.answers
    answers.add(publish(channel, arguments, make_message(channel, arguments, data, len(data)), channel.request))


def check(channel: Channel, arguments: Arguments) -> None:
    """Raise an error if the fields of a transfer are invalid."""
    if arguments["user_id"]:
        channel.check_user(arguments["user_id"].encode("utf-8", "surrogateescape"))
    if arguments["reply_to"] == REPLY_NAME:
        arguments["reply_to"] = channel.replies.address()
    if arguments["ttl"] > MAX_EXPIRATION:
        raise PreconditionFailed(f"invalid ttl {arguments['ttl']}: expected at most {MAX_EXPIRATION} milliseconds")
    channel.opened_on.find_route(make_address(arguments["destination"], arguments["routing_key"]))


def make_message(channel: Channel, arguments: Arguments, body: Body, size: int) -> Message:
    """Create the message of a complete transfer."""
    now = channel.broker.timers.now()
    ttl = arguments["ttl"]
    expires_at = now + ttl if ttl else 0
    header = encode_transfer(size, {**arguments, "timestamp": now // 1000, "expiration": -(-expires_at // 1000)})
    return Message(
        make_address(arguments["destination"], arguments["routing_key"]),
        header,
        body,
        size,
        arguments["delivery_mode"] == PERSISTENT,
        arguments["priority"],
        expires_at,
        -1,
        publisher_of(channel.opened_on, MESSAGE),
        FORMAT_CLASS_AMQP09,
    )


def publish(channel: Channel, arguments: Arguments, message: Message, request: int) -> Answer:
    """Publish the message of a transfer, and return the reply to the request with the id `request`."""
    connection = channel.opened_on
    route = connection.find_route(message.address)
    body = message.body
    prepare_other_classes(channel.vhost)
    channel.count_publish(route)
    channel.check_pause()
    if isinstance(body, StoredBody):
        connection.note_spooled()
    connection.published(channel)
    queues = channel.route_message(route, message)
    try:
        queues = choose(queues, message, arguments)
    except Rejected as rejected:
        return Answer("message.reject", {"code": rejected.code, "text": str(rejected)}, request)
    if channel.transacted:
        channel.publish_in_transaction(message, route, 0, 0 if isinstance(body, StoredBody) else message.size)
        return Answer("message.ok", {}, request)
    accepted = push(route, message, queues) is None
    if len(queues) > WIDE_FANOUT:
        connection.broker.work += len(queues)
    batch = channel.log.filling if message.row is not None else 0
    if not accepted:
        return Answer("message.reject", {"code": GENERIC, "text": "a queue is full"}, request, batch)
    return Answer("message.ok", {}, request, batch)


def choose(queues: list[Queue], message: Message, arguments: Arguments) -> list[Queue]:
    """Return the queues for a message. Only Qpid's transfers have the field `mandatory`.

    Raises:
        Rejected: a mandatory message has no queue, or an immediate one has no consumer.
    """
    if arguments.get("mandatory") and is_unroutable(queues):
        raise Rejected(GENERIC, "NO_ROUTE")
    if arguments["immediate"]:
        queues = [queue for queue in queues if queue.can_deliver_now(message)]
        if not queues:
            raise Rejected(NOT_IMMEDIATE, "NO_CONSUMERS")
    return queues


# Consume


def qos(channel: Channel, prefetch_size: int, prefetch_count: int, **flags: bool) -> None:
    """Perform message.qos. The windows apply to all classes of the channel."""
    basic091.set_qos(channel, prefetch_size, prefetch_count, flags["global"], "")
    channel.messages.answers.ok()


def consume(
    channel: Channel,
    ticket: int,
    queue: str,
    destination: str,
    no_local: bool,
    no_ack: bool,
    exclusive: bool,
    filter: FieldTable,
) -> None:
    """Perform message.consume."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, READ, name)
    channel.release_exclusive(name)
    if destination and channel.tag_owner(destination) is not None:
        raise NotAllowed(f"attempt to reuse destination '{destination}': destinations are unique in the connection")
    if LEASE in filter:
        raise PreconditionFailed("message.consume: only class basic supports leases")
    if is_set(filter, NO_CONSUME):
        filter[BROWSE] = no_ack = True
    if no_ack and filter.get(RESUMES) is True:
        raise PreconditionFailed(f"message.consume: {RESUMES} requires acknowledgements: consume without no-ack")
    tag = destination or "amq.dest-" + secrets.token_urlsafe(16)
    basic091.consume(channel, name, tag, no_local, no_ack, exclusive, True, filter, MessageConsumer)
    consumer = channel.consumers.by_tag[tag]
    assert isinstance(consumer, MessageConsumer)
    consumer.set_destination(destination)
    channel.messages.answers.ok()


def cancel(channel: Channel, destination: str) -> None:
    """Perform message.cancel. Without a destination, it cancels the consumers of the channel that have none."""
    if destination:
        owner = channel.tag_owner(destination)
        if owner is not None and owner is not channel:
            raise NotAllowed(f"destination '{destination}' belongs to a consumer of another channel")
        channel.cancel(destination)
    else:
        for tag, consumer in list(channel.consumers.by_tag.items()):
            if isinstance(consumer, MessageConsumer) and not consumer.destination:
                channel.cancel(tag)
    channel.messages.answers.ok()


class _Get(Waiting):
    """A message.get that waits for earlier replies, or for its message to be read from disk."""

    def __init__(self, channel: Channel, queue: Queue, destination: str, no_ack: bool) -> None:
        self.channel = channel
        self.queue = queue
        self.destination = destination
        self.no_ack = no_ack

    def loaded(self) -> None:
        channel = self.channel
        if channel.closing:
            return
        if self.answer():
            channel.resume()
        else:
            self.queue.paging.wait_loaded(self)

    def answer(self) -> bool:
        """Reply and transfer the message. Return False if it must be read from disk first."""
        channel = self.channel
        queue = self.queue
        entry = None
        taken_back = 0
        while taken_back < MAX_TAKEN_BACK:
            entry = queue.get(self.no_ack, MESSAGE, channel.scope)
            if entry is None:
                break
            try:
                channel.messages.fitting(entry, self.destination)
                break
            except Undelivered as undelivered:
                queue.take_back(undelivered, channel.scope)
                taken_back += 1 + (len(entry.message.header) >> TAKEN_BACK_SHIFT)
                entry = None
        if entry is None:
            if taken_back < MAX_TAKEN_BACK and queue.paging.must_load(MESSAGE, channel.scope):
                return False
            channel.messages.answers.add(Answer("message.empty", {}, channel.request))
            return True
        trace_get(queue, entry, channel.client)
        channel.messages.answers.ok()
        channel.messages.deliver(entry, self.destination, not self.no_ack)
        return True


def get(channel: Channel, ticket: int, queue: str, destination: str, no_ack: bool) -> None:
    """Perform message.get: reply with ok, then transfer the message."""
    name = name_of(channel, queue)
    channel.tickets.check(ticket, READ, name)
    connection = channel.connection
    connection.check("read", name)
    found = channel.vhost.queue(name, connection)
    if channel.vhost.strict and found.consumers.is_exclusive():
        raise AccessRefused(f"queue '{name}' in vhost '{channel.vhost.name}' in exclusive use")
    # A refusal of the get itself could not be raised after the wait for earlier replies.
    check_supported(found, GET)
    found.lifetime.touch()
    waiting = _Get(channel, found, destination, no_ack)
    answers = channel.messages.answers
    if answers.waiting:
        channel.stall()
        answers.when_empty(waiting.loaded)
    elif not waiting.answer():
        channel.stall()
        found.paging.wait_loaded(waiting)


def recover(channel: Channel, requeue: bool) -> None:
    """Perform message.recover."""
    if channel.transacted:
        raise PreconditionFailed("message.recover is not allowed on a transacted channel: roll back instead")
    basic091.recover_async(channel, requeue)
    channel.messages.answers.ok()


# Replies of the client


def ok(channel: Channel) -> None:
    """Perform message.ok: the client acknowledges messages."""
    for tag in channel.messages.settled_by("message.ok"):
        channel.ack(tag, False)


def reject(channel: Channel, code: int, text: str) -> None:
    """Perform message.reject: dead-letter or drop messages."""
    if code not in (GENERIC, NOT_IMMEDIATE):
        raise SyntaxInvalid(f"message.reject: unknown reject code {code}: expected {GENERIC} or {NOT_IMMEDIATE}")
    for tag in channel.messages.settled_by("message.reject"):
        channel.nack(tag, False, False)


def offset(channel: Channel, value: int) -> None:
    """Perform message.offset: send the rest of a message that the client resumes."""
    channel.messages.offset(value)


def empty(channel: Channel) -> None:
    """Refuse message.empty: the broker never sends message.get."""
    raise CommandInvalid("message.empty without a message.get")


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "message.transfer": transfer,
    "message.qos": qos,
    "message.consume": consume,
    "message.cancel": cancel,
    "message.get": get,
    "message.recover": recover,
    "message.ok": ok,
    "message.reject": reject,
    "message.empty": empty,
    "message.offset": offset,
}

"""Class basic: qos, consume, cancel, get, recover (0-9-1 section 1.8). `Channel` performs publish, ack and nack."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.broker import settlement
from leveret.broker.arguments import BROWSE, CONSUMER_ARGUMENTS, parse_consumer_arguments
from leveret.broker.dead_letter import split_address
from leveret.broker.errors import (
    AccessRefused,
    NotAllowed,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceError,
    Undelivered,
)
from leveret.broker.leases.reading import LEASE
from leveret.broker.message import NOT_BASIC
from leveret.broker.queues import capabilities
from leveret.broker.queues.loading import Waiting
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.broker.watches import trace_get
from leveret.protocols.amqp091 import content
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer
from leveret.protocols.amqp091.channel.direct_replies import REPLY_NAME
from leveret.protocols.amqp091.channel.unacked import PIECE_WORK
from leveret.protocols.amqp091.methods.queue import find, name_of
from leveret.protocols.convert import to_amqp0

# Maximum number of unacknowledged deliveries whose sizes are summed in one turn, and number per unit of work, as a power of
# two.
MAX_COUNTED: int = 100_000  # not Final: tests lower it
COUNTED_SHIFT: Final = 4
# Maximum number of messages with headers that exceed a frame which one basic.get passes before it finds the queue empty.
# Every 8 KiB of a header count as another one.
MAX_TAKEN_BACK: Final = 16
TAKEN_BACK_SHIFT: Final = 13


def qos(channel: Channel, prefetch_size: int, prefetch_count: int, **flags: bool) -> None:
    """Perform basic.qos."""
    set_qos(channel, prefetch_size, prefetch_count, flags["global"], "basic.qos-ok")  # `global` is a Python keyword


def set_qos(channel: Channel, prefetch_size: int, prefetch_count: int, everywhere: bool, answer: str) -> None:
    """Set the prefetch windows.

    With RabbitMQ's meaning of `global`, false sets the window of each new consumer and true that of the channel. With the
    spec's meaning (`amqp.qos_global`), false sets the window of the channel and true that of the connection.

    Args:
        channel: the channel.
        prefetch_size: window in bytes; 0 means no limit.
        prefetch_count: window in messages; 0 means no limit.
        everywhere: the flag `global`.
        answer: name of the reply method; "" for none.
    """
    connection = channel.connection
    if prefetch_size:
        channels = list(connection.channels.values()) if everywhere and connection.qos_spec else [channel]
        check_countable(channels, "cannot set prefetch-size", "set it before consuming")
    if everywhere and connection.qos_spec:
        connection.window.set(prefetch_count, prefetch_size)
        for other in connection.channels.values():
            other.set_counted()
            other.update_window()
    elif everywhere or connection.qos_spec:
        channel.window.set(prefetch_count, prefetch_size)
    else:
        channel.window.set_default(prefetch_count, prefetch_size)
    channel.set_counted()
    if answer:
        connection.engine.send(channel.number, answer, {})
    if everywhere and connection.qos_spec:
        connection.window_freed()
    else:
        channel.wake()


def check_countable(channels: list[Channel], refusal: str, advice: str) -> None:
    """Raise PreconditionFailed if summing the sizes of the unacknowledged deliveries takes longer than a turn."""
    count = sum(len(one.unacked) + len(one.transaction.settlements) for one in channels if not one.unacked.sized)
    if count > MAX_COUNTED:
        raise PreconditionFailed(
            f"{refusal} with {count} unacknowledged deliveries; expected at most {MAX_COUNTED}: {advice}"
        )
    channels[0].broker.work += count >> COUNTED_SHIFT


def consume(
    channel: Channel,
    queue: str,
    consumer_tag: str,
    no_local: bool,
    no_ack: bool,
    exclusive: bool,
    no_wait: bool,
    arguments: FieldTable,
    kind: type[ChannelConsumer] = ChannelConsumer,
    answer: str = "basic.consume-ok",
) -> None:
    """Perform basic.consume. 0-9 passes its own `kind` of consumer for each content class."""
    connection = channel.connection
    if consumer_tag in channel.consumers.by_tag:
        raise NotAllowed(f"attempt to reuse consumer tag '{consumer_tag}'")
    if queue == REPLY_NAME:
        found = _reply_queue(channel, no_ack)
    else:
        connection.check("read", name_of(channel, queue))
        found = find(channel, queue)
    settings = parse_consumer_arguments(arguments, strict=channel.vhost.strict)
    channel.broker.unknown_arguments.note(CONSUMER_ARGUMENTS, settings.unknown)
    limit = connection.settings.consumers_per_channel
    if limit and len(channel.consumers) >= limit:
        raise ResourceError(f"the channel already has {limit} consumers; the limit is set by limits.consumers_per_channel")
    if not consumer_tag:
        consumer_tag = "amq.ctag-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    browses = arguments.get(BROWSE) is True
    if browses:
        _check_browser(channel, found, no_ack, exclusive)
    elif found.consumers.is_exclusive() or (exclusive and found.consumers.is_consumed()):
        raise AccessRefused(f"queue '{found.name}' in vhost '{connection.vhost_name}' in exclusive use")
    if exclusive and found.settings.single_active_consumer:
        raise AccessRefused(
            f"queue '{found.name}' in vhost '{connection.vhost_name}' has a single active consumer:"
            " exclusive consumers are not permitted"
        )
    if found.replayable and LEASE not in arguments:
        _check_reader(channel, found, no_ack)
    found.check_consumer(arguments, no_ack)
    consumer = kind(channel, found, consumer_tag, no_ack, exclusive, no_local, settings.priority, arguments)
    if browses:
        consumer.browse({})
    channel.consumers.add(consumer)
    if not no_wait:
        connection.engine.send(channel.number, answer, {"consumer_tag": consumer_tag})
    channel.watch_timeout(settings.timeout, found)
    found.add_consumer(consumer)


def _check_reader(channel: Channel, stream: Queue, no_ack: bool) -> None:
    """Raise an error, as RabbitMQ does, if a stream consumer has no prefetch or does not acknowledge."""
    if no_ack:
        raise NotImplementedByBroker(
            f"queue '{stream.name}' in vhost '{channel.connection.vhost_name}' is a stream, which"
            " has no automatic acknowledgement: consume without no-ack",
            closes_connection=True,
        )
    if not channel.window.default_prefetch and not channel.window.prefetch:
        raise PreconditionFailed(
            f"consumer prefetch count is not set for queue '{stream.name}' in vhost"
            f" '{channel.connection.vhost_name}': a stream's consumer needs basic.qos first"
        )


def _check_browser(channel: Channel, queue: Queue, no_ack: bool, exclusive: bool) -> None:
    """Raise PreconditionFailed if a browsing consumer acknowledges, is exclusive, or reads a stream."""
    reason = queue.unsupported.get(capabilities.BROWSE)
    if reason is not None:
        raise PreconditionFailed(
            f"invalid arg '{BROWSE}' for queue '{queue.name}' in vhost '{channel.connection.vhost_name}': it is {reason}"
        )
    if not no_ack or exclusive:
        raise PreconditionFailed(
            f"invalid arg '{BROWSE}' for queue '{queue.name}' in vhost"
            f" '{channel.connection.vhost_name}': consume with no-ack, and not exclusively"
        )


def _reply_queue(channel: Channel, no_ack: bool) -> Queue:
    """Create the reply queue of this channel (RabbitMQ's direct reply-to)."""
    if not no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge: consume from 'amq.rabbitmq.reply-to' with no-ack")
    return channel.replies.open(channel.vhost)


def cancel(channel: Channel, consumer_tag: str, no_wait: bool) -> None:
    """Perform basic.cancel."""
    if channel.vhost.strict and not channel.consumers.is_known(consumer_tag):
        raise NotAllowed(f"unknown consumer tag '{consumer_tag}' on this channel")
    channel.cancel(consumer_tag)
    if not no_wait:
        channel.connection.engine.send(channel.number, "basic.cancel-ok", {"consumer_tag": consumer_tag})


def cancel_ok(channel: Channel, consumer_tag: str) -> None:
    """Ignore basic.cancel-ok, the reply to a cancel notification."""


class _Get(Waiting):
    """A basic.get whose message is being read from disk."""

    def __init__(self, channel: Channel, queue: Queue, no_ack: bool, kind: int) -> None:
        self.channel = channel
        self.queue = queue
        self.no_ack = no_ack
        self.kind = kind

    def loaded(self) -> None:
        channel = self.channel
        if channel.closing:
            return
        if _answer_get(channel, self.queue, self.no_ack, self.kind):
            channel.resume()
        else:
            self.queue.paging.wait_loaded(self)


def get(channel: Channel, queue: str, no_ack: bool, kind: int = 0) -> None:
    """Perform basic.get. With a `kind`, get the first message of that content class (0-9)."""
    name = name_of(channel, queue)
    channel.connection.check("read", name)
    found = channel.vhost.queue(name, channel.connection)
    if channel.vhost.strict and found.consumers.is_exclusive():
        raise AccessRefused(f"queue '{name}' in vhost '{channel.connection.vhost_name}' in exclusive use")
    found.lifetime.touch()
    if not _answer_get(channel, found, no_ack, kind):
        channel.stall()
        found.paging.wait_loaded(_Get(channel, found, no_ack, kind))


def _answer_get(channel: Channel, queue: Queue, no_ack: bool, kind: int) -> bool:
    """Send get-ok or get-empty. Return False if the message must be read from disk first."""
    scope = channel.scope
    connection = channel.connection
    limit = connection.engine.payload_max
    entry = None
    taken_back = 0
    while taken_back < MAX_TAKEN_BACK:
        entry = queue.get(no_ack, kind, scope)
        if entry is None:
            break
        message = entry.message
        header = message.header
        if message.format & NOT_BASIC:
            message = to_amqp0.convert(entry)
            header = message.header
        elif entry.overlay is not None:
            header = content.header_of(entry)
        if len(header) <= limit:
            break
        shorter = content.fitting(entry, header, limit)
        if shorter:
            header = shorter
            break
        queue.take_back(Undelivered(entry, content.too_long(entry, header, limit)), scope)
        entry = None
        taken_back += 1 + (len(header) >> TAKEN_BACK_SHIFT)
    if entry is None:
        if taken_back < MAX_TAKEN_BACK and not queue.deleted and queue.paging.must_load(kind, scope):
            return False
        queue.counters.count_empty_get()
        channel.count_get(None, no_ack)
        connection.engine.send(channel.number, "basic.get-empty", {})
        connection.mark()
        return True
    channel.count_get(entry, no_ack)
    trace_get(queue, entry, channel.client)
    unacked = channel.unacked
    tag = unacked.new_tag()
    if not no_ack:
        unacked.count(entry)
        unacked.put(tag, entry)
    overlay = entry.overlay
    exchange = message.exchange
    routing_key = message.routing_key
    if overlay is not None and overlay.address is not None:
        exchange, routing_key = split_address(overlay.address)
    channel.send_content(
        "basic.get-ok",
        {
            "delivery_tag": tag,
            "redelivered": entry.acquired_count > 1,
            "exchange": exchange,
            "routing_key": routing_key,
            "message_count": min(queue.ready_count, 0xFFFFFFFF),
        },
        header,
        message,
    )
    return True


def recover(channel: Channel, requeue: bool) -> None:
    """Perform basic.recover."""
    _recover(channel, requeue, partial(channel.connection.engine.send, channel.number, "basic.recover-ok", {}))


def recover_async(channel: Channel, requeue: bool) -> None:
    """Perform basic.recover-async, which has no reply."""
    _recover(channel, requeue, None)


def _recover(channel: Channel, requeue: bool, done: Callable[[], object] | None) -> None:
    channel.run_steps(_recovering(channel, requeue), partial(_recovered, channel, requeue, done))


def _recovering(channel: Channel, requeue: bool) -> Iterator[int]:
    if requeue:
        yield from channel.unacked.requeuing()
        return
    # Redeliver to the original consumers that still exist; requeue the rest.
    unacked = channel.unacked
    back: list[int] = []
    for tags in unacked.all_tags():
        yield PIECE_WORK
        for tag in tags:
            entry = unacked.entries.get(tag)
            if entry is None:
                continue
            holder = entry.holder
            if isinstance(holder, ChannelConsumer) and channel.consumers.by_tag.get(holder.tag) is holder:
                unacked.remove(tag, entry)
                settlement.count_delivery(entry)
                holder.deliver(entry)
            else:
                back.append(tag)
            yield 2
    yield from unacked.requeuing_tags(back)


def _recovered(channel: Channel, requeue: bool, done: Callable[[], object] | None) -> None:
    channel.update_window()
    if done is not None:
        done()
    if requeue:
        channel.wake()


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "basic.qos": qos,
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.cancel-ok": cancel_ok,
    "basic.get": get,
    "basic.recover": recover,
    "basic.recover-async": recover_async,
}

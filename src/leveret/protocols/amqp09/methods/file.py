"""Class file of 0-9: transfer of large contents by staging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.bodies import StoredBody
from leveret.broker.errors import BrokerError, NotFound, ResourceLocked
from leveret.broker.message import FORMAT_CLASS_AMQP09, Message, make_address
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.consumers import prepare_other_classes, publisher_of
from leveret.protocols.amqp09.contents.files import KIND, FileConsumer
from leveret.protocols.amqp09.methods import contents
from leveret.protocols.amqp09.realms import WRITE
from leveret.protocols.amqp091.methods import basic as basic091
from leveret.protocols.amqp091.methods.replies import reply_when_stored
from leveret.protocols.amqp091.reply_codes import CODES
from leveret.wire.amqp0.classes import FILE
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, ContentMethod
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.table_amqp09 import V0_9

# Method id of file.open.
OPEN: Final = 40


def qos(channel: Channel, prefetch_size: int, prefetch_count: int, **flags: bool) -> None:
    """Perform file.qos. The windows apply to all classes of the channel."""
    basic091.set_qos(channel, prefetch_size, prefetch_count, flags["global"], "file.qos-ok")


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
    """Perform file.consume."""
    contents.consume(channel, ticket, queue, consumer_tag, no_local, no_ack, exclusive, nowait, filter, FileConsumer, KIND)


def cancel(channel: Channel, consumer_tag: str, nowait: bool) -> None:
    """Perform file.cancel. Messages being staged are still delivered."""
    contents.cancel(channel, consumer_tag, nowait, "file.cancel-ok")


class _Opening:
    """A `file.open-ok` that waits until the bytes that it reports are on disk."""

    def __init__(self, channel: Channel, size: int) -> None:
        self.channel = channel
        self.size = size

    def kept(self, error: BrokerError | None) -> None:
        channel = self.channel
        if channel.closing:
            return
        if error is not None:
            channel.connection.refuse(channel, CODES[error.condition], str(error), FILE, OPEN)
        else:
            channel.connection.engine.send(channel.number, "file.open-ok", {"staged_size": self.size})
            channel.connection.mark()
            channel.resume()


def open_staging(channel: Channel, identifier: str, content_size: int) -> None:
    """Perform file.open: reply with the size of the upload.

    The reply waits until the upload itself and the bytes sent on earlier channels are on disk. A client that sends one
    piece after another on the same channel does not wait for the disk in between.
    """
    connection = channel.connection
    staged = channel.broker.uploads.open(
        channel.vhost.name, connection.user, KIND, identifier, content_size, connection, take_over=True
    )
    if staged.synced < channel.files.add(staged):
        channel.stall()
        staged.confirm(_Opening(channel, staged.size).kept)
    else:
        reply_when_stored(channel, "file.open-ok", {"staged_size": staged.size}, True, False)


def open_ok(channel: Channel, staged_size: int) -> None:
    """Perform file.open-ok."""
    channel.files.open_ok(staged_size)


def stage(channel: Channel, command: ContentMethod) -> None:
    """Perform file.stage."""
    channel.files.stage(command)


def publish(
    channel: Channel, ticket: int, exchange: str, routing_key: str, mandatory: bool, immediate: bool, identifier: str
) -> None:
    """Perform file.publish."""
    files = channel.files
    written = files.take_written()
    channel.tickets.check(ticket, WRITE, exchange)
    connection = channel.opened_on
    address = make_address(exchange, routing_key)
    route = connection.find_route(address)
    staged = channel.broker.uploads.find(channel.vhost.name, connection.user, KIND, identifier)
    if staged is None or staged.taken:
        raise NotFound(f"file.publish: no staged content '{identifier}'")
    if not staged.complete:
        raise NotFound(
            f"file.publish: {staged.size} of {staged.announced} bytes of '{identifier}' are staged: stage the rest first"
        )
    if staged.owner is not None:
        raise ResourceLocked(f"file.publish: '{identifier}' is open for staging")
    files.check_pause()
    header = staged.header
    properties = decode_header(header, QPID, V0_9)[2]
    message = Message(
        address,
        header,
        staged.finish() if written is None else written,
        staged.size,
        True,
        properties.get("priority", -1),
        0,
        -1,
        publisher_of(connection, FILE),
        FORMAT_CLASS_AMQP09,
    )
    if files.write_ahead(staged, route, message):
        return
    flags = MANDATORY * mandatory | IMMEDIATE * immediate
    prepare_other_classes(channel.vhost)
    if channel.transacted:
        channel.count_publish(route)
        channel.publish_in_transaction(message, route, flags, 0)  # the body is on disk
        staged.claim()
        files.pending.append(staged)
        files.slow_down(route.queues)
        return
    queues = contents.publish(channel, route, message, flags)
    if isinstance(message.body, StoredBody):
        connection.note_spooled()
    staged.published()
    files.slow_down(queues)
    connection.published(channel)


def ack(channel: Channel, delivery_tag: int, multiple: bool) -> None:
    """Perform file.ack."""
    channel.ack(delivery_tag, multiple)


def reject(channel: Channel, delivery_tag: int, requeue: bool) -> None:
    """Perform file.reject."""
    channel.nack(delivery_tag, False, requeue)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "file.qos": qos,
    "file.consume": consume,
    "file.cancel": cancel,
    "file.open": open_staging,
    "file.open-ok": open_ok,
    "file.publish": publish,
    "file.ack": ack,
    "file.reject": reject,
}
CONTENT_HANDLERS: Final[dict[str, Callable[[Channel, ContentMethod], None]]] = {"file.stage": stage}

"""Record batches published on a channel (docs/record-batches.md). Shared by 0-9-1 and 0-9."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body, whole
from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.message import Message, make_address
from leveret.broker.routing import Route, check_keys, is_unroutable
from leveret.protocols.amqp091 import content
from leveret.protocols.amqp091.channel.direct_replies import MIN_REPLY_HEADER, REPLY_TO
from leveret.protocols.amqp091.reply_codes import CODES, reply_text
from leveret.protocols.record_batches import (
    CHECK_WORK,
    CHUNK,
    CHUNK_WORK,
    SCAN_SHIFT,
    BatchRows,
    Run,
    in_row,
    open_batch,
    push_row,
    route_of,
    too_large,
)
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, TICKET_SHIFT, Publish
from leveret.wire.amqp0.constants import NO_ROUTE, RESOURCE_ERROR
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.properties import FLAGS_AT, decode_header, encode_header, scan
from leveret.wire.amqp0.values import ContentProperties
from leveret.wire.record_batches import EXCHANGE, MAX_BYTES, REPORT_TYPE, RowReader

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel

# Class and method id of basic.publish.
PUBLISH: Final = (60, 40)
BASIC: Final = 60
_FIXED: Final = struct.Struct(">HHQ").pack
# Bytes of a frame in addition to its payload.
_FRAME_BYTES: Final = 8


class RowProperties:
    """The properties of one or more rows.

    Attributes:
        encoded: flags and properties.
        persistent, priority, expires_at, headers_at: see `Message`.
        copies: whether there may be headers CC or BCC.
    """

    __slots__ = ("copies", "encoded", "expires_at", "headers_at", "persistent", "priority")

    def __init__(self, encoded: bytes, found: Publish, expires_at: int) -> None:
        self.encoded = encoded
        self.persistent = found.delivery_mode == 2
        self.priority = found.priority
        self.expires_at = expires_at
        self.headers_at = found.headers_at
        self.copies = found.headers_at >= 0 and b"CC" in encoded


class BatchPublish:
    """A record batch that is being published."""

    def __init__(self, channel: Channel, command: Publish, body: Body) -> None:
        self.channel = channel
        self.flags = command.flags & (MANDATORY | IMMEDIATE)
        self.ticket = command.flags >> TICKET_SHIFT
        self.header = command.header
        self.size = command.size
        self.body = body
        self.rows = BatchRows(channel.vhost)
        # The run of the latest row, its properties, and all known ones.
        self.run: Run | None = None
        self.encoded = b""
        self.properties: RowProperties | None = None
        self.known: dict[bytes, RowProperties] = {}
        # A message that is in the log; None if there is none.
        self.stored: Message | None = None
        self.refusal: BrokerError | None = None

    def pieces(self) -> Iterator[int]:
        """Check all rows, then publish them."""
        try:
            reader = self._open()
            while reader.taken < reader.count:
                yield self._check(reader)
            self.known.clear()
            yield from self.rows.publishing(self._publish)
        except BrokerError as error:
            self.refusal = error

    def _open(self) -> RowReader:
        if self.flags & IMMEDIATE:
            raise PreconditionFailed("a record batch cannot be immediate; expected no flag, or mandatory for all its rows")
        if self.size > MAX_BYTES:
            raise too_large(self.size)
        data = whole(self.body)
        self.body = b""
        return open_batch(data)

    def _check(self, reader: RowReader) -> int:
        """Check some rows, and make their messages. Returns the units of work."""
        channel = self.channel
        messages = self.rows.messages
        publisher = channel.publisher
        format = channel.format
        header = b""
        header_size = -1
        work = 0
        stop = min(reader.taken + CHUNK, reader.count)
        try:
            while reader.taken < stop and work < CHUNK_WORK:
                body = reader.next()
                run = self.run
                if run is None or reader.address is not run.address:
                    run = self._begin_run(reader.address)
                properties = self.properties
                if properties is None or reader.properties is not self.encoded:
                    header_size = -1
                    work += len(reader.properties) >> SCAN_SHIFT
                    properties = self.properties = self._properties_of(reader.properties)
                    self.encoded = reader.properties
                size = len(body)
                if size != header_size:
                    header = _FIXED(BASIC, 0, size) + properties.encoded
                    header_size = size
                message = Message(
                    run.address,
                    header,
                    body,
                    size,
                    properties.persistent,
                    properties.priority,
                    properties.expires_at,
                    properties.headers_at,
                    publisher,
                    format,
                )
                if properties.copies:
                    self._check_copies(message, run)
                messages.append(message)
                work += CHECK_WORK
        except BrokerError as error:
            raise in_row(len(messages), error) from None
        return work

    def _begin_run(self, address: bytes) -> Run:
        """Begin a run of rows with this address."""
        channel = self.channel
        route = route_of(channel.connection, channel.vhost, address)
        channel.check_row(self.ticket, address)
        run = self.run = self.rows.begin_run(address, route)
        return run

    def _properties_of(self, encoded: bytes) -> RowProperties:
        properties = self.known.get(encoded)
        if properties is None:
            properties = self.known[encoded] = self._scan(encoded)
        return properties

    def _scan(self, encoded: bytes) -> RowProperties:
        """Check the properties of a row.

        Raises:
            PreconditionFailed: they are malformed, or not permitted.
        """
        channel = self.channel
        engine = channel.connection.engine
        limit = engine.frame_max - _FRAME_BYTES - FLAGS_AT
        if engine.frame_max and len(encoded) > limit:
            raise PreconditionFailed(
                f"properties of {len(encoded)} bytes; expected at most {limit}, as in a frame of this connection; the"
                " setting is amqp.frame_max"
            )
        header = _FIXED(BASIC, 0, 0) + encoded
        found = Publish(channel.number, b"", 0, header, 0, b"", 0, -1, None, None, -1)
        if not scan(found, header, engine.dialect):
            raise PreconditionFailed("malformed properties; expected the flags and properties of a header of class basic")
        if found.user_id is not None:
            channel.check_user(found.user_id)
        expires_at = 0
        if found.expiration is not None:
            expires_at = channel.expiry(found.expiration)
        if len(header) >= MIN_REPLY_HEADER and header.find(REPLY_TO) >= 0:
            encoded = channel.replies.with_address(header)[FLAGS_AT:]
        return RowProperties(encoded, found, expires_at)

    def _check_copies(self, message: Message, run: Run) -> None:
        """Check the routing keys in CC and BCC."""
        channel = self.channel
        run.single = True
        route = run.route
        copies = content.check_copies(message)
        channel.connection.check_topics(route, copies)
        check_keys(channel.broker, [route.routing_key, *copies])

    def _publish(self, run: Run, stop: int) -> None:
        """Publish rows of a run, up to `stop` (exclusive) or fewer if they are much work."""
        rows = self.rows
        if self.channel.transacted:
            self._add_to_transaction(run.route, stop)
            return
        try:
            route = rows.route_of(run)
        except BrokerError as error:
            rows.refuse(stop, str(error))
            return
        first = rows.published
        index = rows.push_run(run, route, stop)
        if index < stop:
            index = self._publish_singly(run, route, index, stop)
        self._note_stored(first, index)
        self.channel.count_rows(index - first)
        rows.note_published(index)

    def _add_to_transaction(self, route: Route, stop: int) -> None:
        channel = self.channel
        rows = self.rows
        for index in range(rows.published, stop):
            message = rows.messages[index]
            channel.count_publish(route)
            try:
                channel.publish_in_transaction(message, route, self.flags, message.size)
            except BrokerError as error:
                raise in_row(index, error) from None
        rows.note_published(stop)

    def _publish_singly(self, run: Run, route: Route, index: int, stop: int) -> int:
        """Publish rows one by one, from an index. Returns the index of the first one that is left."""
        channel = self.channel
        broker = channel.broker
        begun = broker.work
        rows = self.rows
        while index < stop and broker.work - begun < CHUNK_WORK:
            message = rows.messages[index]
            try:
                queues = channel.queues_of_row(message, route, run.single)
                if queues:
                    push_row(route, message, queues)
                if is_unroutable(queues) and channel.note_unroutable(self.flags):
                    rows.report.unroutable.append(index)
            except BrokerError as error:
                rows.report.refuse(index, str(error))
            index += 1
        return index

    def _note_stored(self, first: int, stop: int) -> None:
        """Note the latest of some published messages that is in the log."""
        messages = self.rows.messages
        for index in range(stop - 1, first - 1, -1):
            if messages[index].row is not None:
                self.stored = messages[index]
                break

    def done(self) -> None:
        """Report rows that were not published, and confirm the record batch when all rows are on disk."""
        channel = self.channel
        connection = channel.connection
        refusal = self.refusal
        if refusal is not None:
            if refusal.closes_connection:
                connection.close(CODES[refusal.condition], str(refusal), *PUBLISH)
            else:
                connection.refuse(channel, CODES[refusal.condition], str(refusal), *PUBLISH)
            return
        if channel.transacted:
            return  # rows are returned one by one at the commit
        connection.note_batch(self.rows.last_route())
        if not self.rows.report.is_empty():
            self._send_report()
        if channel.confirms is not None:
            channel.confirms.add(
                self.rows.messages[-1] if self.stored is None else self.stored, not self.rows.report.refused
            )

    def _send_report(self) -> None:
        """Return the record batch with a report instead of its rows."""
        channel = self.channel
        report = self.rows.report
        body = report.encode()
        properties: ContentProperties = {"content_type": REPORT_TYPE}
        try:
            own = decode_header(self.header, channel.connection.engine.dialect)[2]
        except WireError:
            own = {}
        for name in ("correlation_id", "message_id"):
            if own.get(name) is not None:
                properties[name] = own[name]
        message = Message(make_address(EXCHANGE, ""), encode_header(BASIC, len(body), properties), body, len(body), False)
        code = RESOURCE_ERROR if report.refused else NO_ROUTE
        channel.send_return(message, code, reply_text(code, report.text(len(self.rows.messages))))

"""Links to the address `/exchanges/leveret.batches`: each message is a record batch (docs/record-batches.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import StoredBody, whole
from leveret.broker.errors import AccessRefused, BrokerError, PreconditionFailed
from leveret.broker.message import Message
from leveret.broker.routing import Route
from leveret.protocols.amqp10.errors import LinkRefused, Refusal, condition_of, make_error
from leveret.protocols.amqp10.link.incoming import IncomingLink, check_values
from leveret.protocols.amqp10.message_times import delivery_time
from leveret.protocols.amqp10.messages import check_annotations, make_message
from leveret.protocols.convert import to_amqp0
from leveret.protocols.record_batches import (
    CHECK_WORK,
    CHUNK,
    CHUNK_WORK,
    ENVELOPE_BYTES,
    PUBLISH_WORK,
    SCAN_SHIFT,
    Report,
    in_row,
    open_batch,
    push_row,
    route_of,
    too_large,
)
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Rejected
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Value
from leveret.wire.record_batches import ADDRESS, MAX_BYTES, RowReader

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.protocols.amqp10.link.spooled_message import SpooledMessage
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.wire.amqp10.transport import Attach

BATCHES: Final = ADDRESS
# Maximum number of record batches of a link that are being published. The credit has the same maximum.
MAX_PENDING: Final = 4
# Minimum max-frame-size of the client: an outcome with row numbers must fit in a frame.
MIN_FRAME_SIZE: Final = 16_384
# Error condition of an outcome with row numbers.
ROWS_NOT_PUBLISHED: Final = "leveret:rows-not-published"


class BatchLink(IncomingLink):
    """A link for record batches.

    Attributes:
        pending: record batches that are being published, oldest first.
    """

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int) -> None:
        super().__init__(session, frame, handle)
        limit = session.connection.output.max_frame_size
        if limit < MIN_FRAME_SIZE:
            raise LinkRefused(
                constants.NOT_ALLOWED,
                f"record batches need a max-frame-size of {MIN_FRAME_SIZE} or more in the open of the client, not {limit}",
            )
        self.max_credit = min(self.max_credit, MAX_PENDING)
        self.pending: deque[BatchDelivery] = deque()

    def grant(self) -> None:
        """Grant credit, unless the maximum number of record batches is being published."""
        if len(self.pending) < MAX_PENDING:
            super().grant()

    def write_ahead(self, spooled_message: SpooledMessage) -> bool:
        return False  # its rows are written when they are published

    def complete(self, payload: bytes) -> None:
        """Publish the rows of a record batch, in steps if there are many."""
        if self.transaction is not None:
            raise LinkRefused(
                constants.NOT_IMPLEMENTED,
                "a record batch in a transaction; expected a transfer outside of transactions, or single messages in it",
            )
        batch = BatchDelivery(self, payload, self.stored)
        self.pending.append(batch)
        if len(self.pending) == 1:
            self._start(batch)

    def _start(self, batch: BatchDelivery) -> None:
        if self.session.broker.jobs.run_steps(batch.pieces(), self._next, self._failed):
            self._finish_first()

    def _finish_first(self) -> None:
        self.pending.popleft().done()

    def _next(self) -> None:
        """Finish a record batch that was published in a later turn, and publish those that have arrived since."""
        session = self.session
        self._finish_first()
        while self.pending:
            batch = self.pending[0]
            if not session.broker.jobs.run_steps(batch.pieces(), self._next, self._failed):
                break
            self._finish_first()
        if not session.ended:
            session.resolve()
            self.grant()
            session.connection.mark()

    def _failed(self) -> None:
        """Detach the link after an internal error, which is logged."""
        self.pending.clear()
        if not self.session.ended:
            self.session.refuse(self, make_error(constants.INTERNAL_ERROR, "internal error; see the broker's log"))

    def resolve_batch(self, batch: BatchDelivery, state: int, answer: Composite | None) -> None:
        """Report the outcome of a record batch that is published, once its rows are on disk."""
        session = self.session
        if not session.ended and not batch.settled:
            commit = session.log.filling if batch.stored else 0
            session.resolved(self, batch.number, commit, state, not batch.second, answer)

    def refuse_batch(self, batch: BatchDelivery, condition: str, text: str) -> None:
        """Reject a record batch; if it cannot be rejected, end the link."""
        session = self.session
        if session.ended:
            return
        error = make_error(condition, text)
        if batch.settled or not self.may_reject:
            session.refuse(self, error)
        else:
            session.resolved(self, batch.number, 0, descriptors.REJECTED, not batch.second, Rejected(error))

    def count_rows(self, route: Route, count: int) -> None:
        """Count published rows. The route of the last one decides whether the broker is behind."""
        self.session.published += count
        self.session.connection.published_any = True
        self.latest_route = route


class Row:
    """A checked row: a message, its route, and the time at which it becomes visible; 0 for now."""

    __slots__ = ("due", "message", "route")

    def __init__(self, message: Message, route: Route, due: int) -> None:
        self.message = message
        self.route = route
        self.due = due


class BatchDelivery:
    """A delivery of a record batch.

    Attributes:
        number: its delivery-id.
        settled: whether the client has settled it.
        second: whether the client will settle it after its outcome.
        stored: whether a message of it is in the log.
    """

    def __init__(self, link: BatchLink, payload: bytes, body: StoredBody | None) -> None:
        self.link = link
        # With a body in the spool, the payload has only the other sections.
        self.payload = payload
        self.body = body
        self.number = link.delivery_id
        self.settled = link.settled
        self.second = link.second
        self.stored = False
        self.connection = link.session.connection
        self.vhost: Vhost = self.connection.vhost
        # That of the vhost when the routes were found.
        self.topology = self.vhost.topology
        self.rows: list[Row] = []
        self.published = 0
        # The latest row.
        self.address = b""
        self.route: Route | None = None
        self.report = Report()
        self.condition = ""
        self.text = ""

    def pieces(self) -> Iterator[int]:
        """Check all rows, then publish them."""
        try:
            reader = self._open()
            while reader.taken < reader.count:
                yield self._check(reader)
        except BrokerError as error:
            self.condition = condition_of(error)
            self.text = str(error)
            return
        while self.published < len(self.rows):
            yield self._publish()

    def _open(self) -> RowReader:
        payload = self.payload
        body = self.body
        self.payload = b""
        self.body = None
        size = len(payload) if body is None else body.size
        if size > MAX_BYTES + ENVELOPE_BYTES:
            raise too_large(size)
        try:
            sections = split(payload)
            if body is None and sections.body_kind != descriptors.DATA:
                raise PreconditionFailed("a record batch without a data section; expected one as the body of the message")
            message = make_message(sections, b"", self.vhost.broker.timers, 0)
            if body is not None:
                message.body = body
                message.size = body.size
        except (DecodeError, Refusal) as error:
            raise PreconditionFailed(f"malformed message: {error}") from None
        data = whole(to_amqp0.content_of(message))
        if len(data) > MAX_BYTES:
            raise too_large(len(data))
        return open_batch(data)

    def _check(self, reader: RowReader) -> int:
        """Check some rows, and make their messages. Returns the units of work."""
        work = 0
        stop = min(reader.taken + CHUNK, reader.count)
        try:
            while reader.taken < stop and work < CHUNK_WORK:
                body = reader.next()
                route = self.route
                if route is None or reader.address is not self.address:
                    self.address = reader.address
                    route = self.route = route_of(self.connection, self.vhost, self.address)
                work += CHECK_WORK + (len(reader.properties) >> SCAN_SHIFT)
                self._add(route, reader.properties + body)
        except BrokerError as error:
            raise in_row(len(self.rows), error) from None
        return work

    def _add(self, route: Route, data: bytes) -> None:
        """Check a message, and add its row.

        Raises:
            PreconditionFailed: it is malformed, or not permitted.
        """
        connection = self.connection
        timers = connection.broker.timers
        due = 0
        try:
            sections = split(data)
            if sections.message_annotations >= 0 or sections.delivery_annotations >= 0 or sections.footer >= 0:
                check_annotations(sections, self.vhost.strict)
            check_values(sections)
            message = make_message(sections, self.address, timers, connection.number)
            if sections.message_annotations >= 0:
                due = delivery_time(sections, timers.now(), timers.step)
        except (DecodeError, Refusal) as error:
            raise PreconditionFailed(str(error)) from None
        if sections.user_id is not None and not connection.may_publish_as(sections.user_id):
            raise AccessRefused(
                f"user-id is '{sections.user_id.decode('utf-8', 'replace')}', but the connection's user is"
                f" '{connection.user}'"
            )
        self.rows.append(Row(message, route, due))

    def _publish(self) -> int:
        """Publish some rows. Returns the units of work."""
        vhost = self.vhost
        link = self.link
        broker = vhost.broker
        begun = broker.work
        first = self.published
        stop = min(first + CHUNK, len(self.rows))
        route: Route | None = None
        for index in range(first, stop):
            if broker.work - begun > CHUNK_WORK:
                break
            row = self.rows[index]
            message = row.message
            route = row.route
            self.published = index + 1
            try:
                if vhost.topology != self.topology:
                    route = vhost.route(message.address)
                queues = route.queues
                if route.dynamic:
                    queues = vhost.route_message(route, message, [], link.session.client)
                else:
                    route.published += 1
                if queues:
                    push_row(message, queues, row.due)
                else:
                    vhost.statistics.count_returned()
                    self.report.unroutable.append(index)
            except BrokerError as error:
                self.report.refuse(index, str(error))
            # A delayed message that is not durable may be in the overflow log.
            if message.row is not None and (not row.due or message.row.log is link.session.log):
                self.stored = True
        count = self.published - first
        if route is not None:
            link.count_rows(route, count)
        return PUBLISH_WORK * count

    def done(self) -> None:
        """Report the outcome."""
        report = self.report
        if self.condition:
            self.link.refuse_batch(self, self.condition, self.text)
        elif report.is_empty():
            self.link.resolve_batch(self, descriptors.ACCEPTED, None)
        else:
            info: dict[str, Value] = dict(report.fields())
            error = make_error(ROWS_NOT_PUBLISHED, report.text(len(self.rows)), info)
            self.link.resolve_batch(self, descriptors.REJECTED, Rejected(error))
        self.rows = []

"""Links to the address `/exchanges/leveret.batches`: each message is a record batch (docs/record-batches.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import StoredBody, whole
from leveret.broker.errors import AccessRefused, BrokerError, PreconditionFailed
from leveret.broker.routing import Route, is_unroutable
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
    MIN_FRAME_SIZE,
    SCAN_SHIFT,
    BatchRows,
    Run,
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
        self.rows = BatchRows(self.vhost)
        # The run of the latest row.
        self.run: Run | None = None
        # When delayed rows become visible, by their index.
        self.due: dict[int, int] = {}
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
        yield from self.rows.publishing(self._publish)

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
                run = self.run
                if run is None or reader.address is not run.address:
                    route = route_of(self.connection, self.vhost, reader.address)
                    run = self.run = self.rows.begin_run(reader.address, route)
                work += self._add(run, reader.properties + body)
        except BrokerError as error:
            raise in_row(len(self.rows.messages), error) from None
        return work

    def _add(self, run: Run, data: bytes) -> int:
        """Check a message, and add its row. Returns the units of work.

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
            message = make_message(sections, run.address, timers, connection.number)
            if sections.message_annotations >= 0:
                due = delivery_time(sections, timers.now(), timers.step)
        except (DecodeError, Refusal) as error:
            raise PreconditionFailed(str(error)) from None
        if sections.user_id is not None and not connection.may_publish_as(sections.user_id):
            raise AccessRefused(
                f"user-id is '{sections.user_id.decode('utf-8', 'replace')}', but the connection's user is"
                f" '{connection.user}'"
            )
        if due:
            run.single = True
            self.due[len(self.rows.messages)] = due
        self.rows.messages.append(message)
        return CHECK_WORK + (len(data) - message.size >> SCAN_SHIFT)

    def _publish(self, run: Run, stop: int) -> None:
        """Publish rows of a run, up to `stop` (exclusive) or fewer if they are much work."""
        rows = self.rows
        try:
            route = rows.route_of(run)
        except BrokerError as error:
            rows.refuse(stop, str(error))
            return
        first = rows.published
        index = rows.push_run(run, route, stop)
        if index < stop:
            index = self._publish_singly(route, index, stop)
        log = self.link.session.log
        for number in range(first, index):
            row = rows.messages[number].row
            # A delayed message that is not durable may be in the overflow log.
            if row is not None and ((number not in self.due and not route.dynamic) or row.log is log):
                self.stored = True
        self.link.count_rows(route, index - first)
        rows.note_published(index)

    def _publish_singly(self, route: Route, index: int, stop: int) -> int:
        """Publish rows one by one, from an index. Returns the index of the first one that is left."""
        vhost = self.vhost
        broker = vhost.broker
        begun = broker.work
        rows = self.rows
        while index < stop and broker.work - begun < CHUNK_WORK:
            message = rows.messages[index]
            try:
                queues = route.queues
                if route.dynamic:
                    queues = vhost.route_message(route, message, [], self.link.session.client)
                else:
                    route.published += 1
                if queues:
                    push_row(route, message, queues, self.due.get(index, 0))
                if is_unroutable(queues):
                    vhost.statistics.count_returned()
                    rows.report.unroutable.append(index)
            except BrokerError as error:
                rows.report.refuse(index, str(error))
            index += 1
        return index

    def done(self) -> None:
        """Report the outcome."""
        report = self.rows.report
        if self.condition:
            self.link.refuse_batch(self, self.condition, self.text)
        elif report.is_empty():
            self.link.resolve_batch(self, descriptors.ACCEPTED, None)
        else:
            info: dict[str, Value] = dict(report.fields())
            error = make_error(ROWS_NOT_PUBLISHED, report.text(len(self.rows.messages)), info)
            self.link.resolve_batch(self, descriptors.REJECTED, Rejected(error))

"""Links on which the client sends: transfers, publishing to exchanges, credit (transport section 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.broker.bodies import Body, StoredBody
from leveret.broker.delay import unpublish
from leveret.broker.errors import BrokerError
from leveret.broker.exchanges.control import CONTROL
from leveret.broker.message import make_address
from leveret.broker.routing import Route, are_behind, is_unroutable, push
from leveret.protocols.amqp10.errors import LinkRefused, Refusal, SessionRefused, condition_of, make_error
from leveret.protocols.amqp10.link import section_offsets
from leveret.protocols.amqp10.link.link import Link
from leveret.protocols.amqp10.link.resume_incoming import ResumedDelivery
from leveret.protocols.amqp10.link.spooled_message import SpooledMessage
from leveret.protocols.amqp10.message_times import delivery_time
from leveret.protocols.amqp10.messages import check_annotations, make_message
from leveret.protocols.amqp10.session.serial_numbers import HALF, MASK, WINDOW
from leveret.protocols.amqp10.terminus import destinations
from leveret.protocols.amqp10.transaction.transaction import LocalTransaction, Posting, presumed, state_of
from leveret.protocols.ingress_throttle import COMMIT
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.decode import count_values
from leveret.wire.amqp10.messaging import Rejected, Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Flow, Transfer
from leveret.wire.amqp10.values import Value

if TYPE_CHECKING:
    from leveret.broker.destination import SendTarget
    from leveret.broker.message import Message
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.destinations import Destination
    from leveret.protocols.amqp10.terminus.target import TargetTerminus
    from leveret.protocols.amqp10.terminus.terminus import TemporaryTopic
    from leveret.wire.amqp10.sections import Sections
    from leveret.wire.amqp10.transport import Attach

# Name of the outcome rejected in the outcomes of a source. If it is not listed, a refused message ends the link.
REJECTED: Final = "amqp:rejected:list"
# Number of queues above which routing a message counts as work of the turn.
WIDE_FANOUT: Final = 16
# Lower bound on the maximum bytes of all incomplete deliveries of a connection, if the maximum message size is smaller.
MIN_PARTIAL_BYTES: Final = 1 << 20
# Maximum number of deliveries of a session or terminus that the client has not settled (receiver settle mode second). At
# the limit, the client receives no more credit.
MAX_UNSETTLED: Final = 20_000
# Queues (as a power of two) that are checked for one unit of work.
WORK_SHIFT: Final = 3
# Units of work to resolve the destination of a message to an anonymous terminus, and to refuse it.
RESOLVED: Final = 3
REFUSED: Final = 15
# Units of work to store an incomplete delivery, in addition to its bytes.
INTERRUPTED: Final = 1000
# Maximum number of values in the annotations, properties and application properties of a message, including keys. They
# are counted only if there are more bytes than this.
MAX_VALUES: Final = 4096
# Payloads smaller than the first number of bytes are joined up to the second.
SMALL_CHUNK: Final = 512
JOINED_CHUNK: Final = 8192
# Maximum bytes of a delivery-tag (transport 2.8.7).
MAX_TAG: Final = 32
NOT_DURABLE: Final = "the queue is not durable, so it accepts no durable messages (compat.strict is set for this vhost)"


class IncomingLink(Link):
    """A link whose receiver is the broker.

    Attributes:
        exchange: exchange to publish to; None for an anonymous terminus, which uses `to` of each message.
        routing_key: routing key; None means the subject of the message.
        accepts_all: whether unroutable messages are accepted (topics).
        max_credit: maximum credit of the client.
        chunks: payloads of the delivery that is being received; None if there is none.
        spooled_message: receives a delivery that is too large for memory, instead of `chunks`.
        buffered: bytes of that delivery in memory.
        spools: whether large messages may go to the spool.
        target: terminus with the unsettled deliveries; None if nothing outlives the link.
        known_tags_only: whether the broker's unsettled map was incomplete, so that the client may only resume deliveries.
        ignored: whether the payload of the current delivery is ignored.
        resumed: the current delivery if the client resumes it, and the broker knows it; None otherwise.
        skip: bytes to skip because they were received before.
        latest_route: route of the latest message.
        behind: whether the client gets no more credit, because the broker is behind with the queues of the target.
        credit_slack: number of resumed deliveries, which clients may or may not count against the credit.
    """

    receives = True

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int) -> None:
        super().__init__(session, frame, handle)
        self.delivery_count = frame.initial_delivery_count or 0
        self.exchange: str | None = None
        self.routing_key: str | None = None
        self.accepts_all = False
        self.max_credit = session.connection.own.link_credit
        self.max_size = session.connection.settings.max_message_size
        source = frame.source
        self.may_reject = not (isinstance(source, Source) and source.outcomes) or REJECTED in source.outcomes
        self.address = b""
        self.route: Route | None = None
        self.latest_route: Route | None = None
        self.topology = -1
        self.generation = -1
        self.account: Any = None
        self.chunks: list[bytes] | None = None
        self.spooled_message: SpooledMessage | None = None
        self.spools = True
        self.size = 0
        self.buffered = 0
        self.delivery_id = 0
        self.settled = False
        self.second = False
        self.ignored = False
        self.tag = b""
        self.target: TargetTerminus | None = None
        self.known_tags_only = False
        self.resumed: ResumedDelivery | None = None
        self.skip = 0
        self.credit_slack = 0
        # Application data of a complete message, if it is not in memory.
        self.stored: StoredBody | None = None
        self.withheld = False
        self.behind = False
        # Whether durable messages are refused because the target node would lose them.
        self.rejects_durable = False
        # Whose deletion ends the link; None if nothing does.
        self.node: SendTarget | None = None
        # Temporary topic that receives the messages.
        self.topic: TemporaryTopic | None = None

    def bind(self, target: TargetTerminus) -> None:
        """Keep the unsettled deliveries in a terminus, which has attached the link."""
        self.terminus = self.target = target

    def only_resume(self) -> None:
        """Refuse new deliveries: the broker's unsettled map was incomplete."""
        self.known_tags_only = True

    def send_to(self, destination: Destination) -> None:
        """Set the destination of all messages."""
        self.accepts_all = destination.accepts_all
        self.rejects_durable = destination.rejects_durable
        self.topic = destination.topic
        self.set_target(destination.exchange, destination.key)

    def set_target(self, exchange: str | None, routing_key: str | None) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        if exchange is not None and routing_key is not None:
            self.address = _address(exchange, routing_key)

    # Credit

    def size_limit(self) -> int:
        return self.max_size or 0

    def flow(self, frame: Flow) -> None:
        if frame.delivery_count is not None:
            # The sender may advance delivery-count; the credit limit stays the same.
            skipped = (frame.delivery_count - self.delivery_count) & MASK
            if skipped < HALF:
                self.credit -= skipped
                self.delivery_count = frame.delivery_count
        if frame.echo:
            self.send_flow()
        self.grant()

    def grant(self) -> None:
        """Grant credit when the client has used half of it, unless there is an alarm or the broker is behind."""
        if self.behind:
            return
        if (
            (self.credit <= self.max_credit >> 1 or self.withheld)
            and (self.is_alarm_exempt() or not self.session.connection.services.alarm)
            and not self.closed
            and len(self.session.unsettled) < MAX_UNSETTLED
            and (self.target is None or len(self.target.deliveries) < MAX_UNSETTLED)
        ):
            if self._is_behind():
                self.behind = True
                self.session.connection.ingress.withhold_credit()
                self.session.connection.shared.withheld_credit.add(self)
                return
            self.withheld = False
            self.credit = self.max_credit
            self.send_flow()

    def grant_again(self) -> None:
        """Grant the credit that was withheld, unless the broker is still behind."""
        self.behind = False
        self.session.connection.ingress.restore_credit()
        self.grant()

    def _is_behind(self) -> bool:
        """Return whether messages wait for the broker in the queues of the target, and the client needs no credit first."""
        route = self.latest_route
        if route is None:
            return False
        self.session.broker.work += len(route.latest) >> WORK_SHIFT
        return are_behind(route.latest) and not self.session.connection.must_be_read()

    def is_alarm_exempt(self) -> bool:
        """Return whether the link keeps its credit during an alarm."""
        return self.exchange == CONTROL

    def withhold(self) -> None:
        """Withdraw the client's credit, which stops publishers.

        Messages that are already in flight are accepted, and requests to the broker still work.
        """
        if not self.withheld and not self.is_alarm_exempt():
            self.withheld = True
            self.send_flow()

    def send_flow(self) -> None:
        session = self.session
        session.connection.send(
            _flow(session, self.handle, self.delivery_count, 0 if self.withheld else max(self.credit, 0))
        )

    def attached(self) -> None:
        self.node = self._find_node()
        if self.node is not None:
            self.node.add_sender(self, self.node_deleted)
        self.grant()

    def _find_node(self) -> SendTarget | None:
        exchange = self.exchange
        if exchange is None:
            return None
        if self.topic is not None:
            return self.topic
        kind, name = ("exchange", exchange) if exchange else ("queue", self.routing_key or "")
        node: SendTarget | None = self.session.connection.vhost.find_destination(kind, name)
        return node

    def forget(self) -> None:
        super().forget()
        if self.node is not None:
            self.node.remove_sender(self)
            self.node = None

    def alarm(self, on: bool) -> None:
        if on:
            self.withhold()
        else:
            self.grant()

    # Transfers

    def is_receiving_in(self, transaction: LocalTransaction) -> bool:
        return self.chunks is not None and self.transaction is transaction

    def transfer(self, frame: Transfer) -> None:
        chunks = self.chunks
        if chunks is None:
            self._begin(frame)
            chunks = self.chunks
            if chunks is None:
                if not frame.more and not frame.aborted:
                    self._finish(frame.payload)
                    return
                chunks = self.chunks = []
                self.size = self.buffered = 0
        else:
            self._check_continuation(frame)
            if frame.settled:
                self.settled = True
            if isinstance(frame.state, TransactionalState) and self._find_transaction(frame.state) is not self.transaction:
                raise LinkRefused(constants.INVALID_FIELD, "the frames of a delivery belong to several transactions")
        if frame.aborted:
            self._abort()
            return
        payload = frame.payload
        if self.skip:
            skipped = min(self.skip, len(payload))
            self.skip -= skipped
            payload = payload[skipped:]
        size = len(payload)
        self.size += size
        if self.max_size and self.size > self.max_size:
            raise LinkRefused(
                constants.LINK_MESSAGE_SIZE_EXCEEDED,
                f"a message of more than {self.max_size} bytes; the setting is amqp.max_message_size",
            )
        if not self.ignored:
            connection = self.session.connection
            connection.count_partial(self._keep(chunks, payload))
            # All links together must not use more memory than one may.
            if self.max_size and connection.partial > max(self.max_size, MIN_PARTIAL_BYTES):
                raise LinkRefused(
                    constants.RESOURCE_LIMIT_EXCEEDED,
                    "incomplete deliveries of the connection"
                    f" exceed {self.max_size} bytes; the setting is amqp.max_message_size",
                )
        if not frame.more:
            spooled_message = self.spooled_message
            if spooled_message is not None and not self.ignored and self.write_ahead(spooled_message):
                return
            self._forget_chunks()
            if spooled_message is None:
                self._finish(b"".join(chunks))
            else:
                self._finish(spooled_message.finish(), spooled_message.body)
            self._finish_resumed()

    def write_ahead(self, spooled_message: SpooledMessage) -> bool:
        """Write a large message to the log before it is published, so that its commit does not delay other connections.

        The input of the connection waits. Returns False if the message can be published now.
        """
        body = spooled_message.body
        sections = split(spooled_message.finish())
        route = self.route
        if body is None or not sections.durable:
            return False
        if route is not None and not route.dynamic and not any(queue.durable for queue in route.queues):
            return False
        session = self.session
        connection = session.connection

        def publish(written: StoredBody) -> None:
            spooled_message.body = written
            connection.ingress.release(COMMIT)

        header = make_message(sections, b"", session.broker.timers, 0).header
        if not session.log.write_ahead(header, body, publish, connection.is_performing):
            return False
        connection.ingress.pause(COMMIT)
        # An empty frame completes the delivery.
        session.repeat_transfer(Transfer(self.handle, channel=session.channel))
        return True

    def _check_continuation(self, frame: Transfer) -> None:
        """Refuse a frame that does not continue the incomplete delivery (transport 2.7.5)."""
        if frame.delivery_id is not None and frame.delivery_id != self.delivery_id:
            raise LinkRefused(
                constants.INVALID_FIELD,
                f"a transfer of delivery {frame.delivery_id} while delivery {self.delivery_id} is incomplete",
            )
        if frame.delivery_tag is not None and frame.delivery_tag != self.tag:
            raise LinkRefused(
                constants.INVALID_FIELD,
                f"a frame of delivery {self.delivery_id} has the delivery-tag"
                f" {frame.delivery_tag[:MAX_TAG]!r}; expected {self.tag!r}, as on the first one",
            )
        if frame.message_format:
            raise LinkRefused(
                constants.INVALID_FIELD,
                f"a frame of delivery {self.delivery_id} has the message format"
                f" {frame.message_format}; expected 0, as on the first one",
            )
        if frame.rcv_settle_mode == 1 and self.rcv_settle_mode != 1 and not self.settled:
            raise _wrong_mode()

    def _keep(self, chunks: list[bytes], payload: bytes) -> int:
        """Store a payload, in the spool if the delivery is large. Return the additional bytes in memory."""
        before = self.buffered
        spooled_message = self.spooled_message
        if spooled_message is None and self.spools and self.size > self.session.connection.settings.spool_threshold:
            spool = self.session.log.spool
            if spool is not None:
                spooled_message = self.spooled_message = SpooledMessage(spool)
                for chunk in chunks:
                    spooled_message.feed(chunk)
                chunks.clear()
        if spooled_message is None:
            # Join small payloads, so that they cost little more memory than their size.
            if len(payload) >= SMALL_CHUNK or not chunks or len(chunks[-1]) >= JOINED_CHUNK:
                chunks.append(payload)
            else:
                chunks[-1] += payload
            self.buffered += len(payload)
        else:
            spooled_message.feed(payload)
            self.buffered = spooled_message.held()
        return self.buffered - before

    def _forget_chunks(self) -> None:
        if self.chunks is not None:
            if not self.ignored:
                self.session.connection.count_partial(-self.buffered)
            self.chunks = None
            self.spooled_message = None

    def _encoded(self) -> bytes:
        """Return the received part of the delivery."""
        return b"".join(self.chunks or ()) if self.spooled_message is None else self.spooled_message.data()

    def _abort(self) -> None:
        """Discard a delivery that the sender aborts, which settles it."""
        self._forget_chunks()
        self.skip = 0
        self.resumed = None
        self._used()
        target = self.target
        if target is not None and not self.ignored:
            delivery = target.deliveries.get(self.tag)
            if delivery is not None:
                target.forget(delivery)

    def restore_partial(self, encoded: bytes, skip: int) -> None:
        """Resume a delivery with its received part. The next `skip` bytes repeat received data."""
        self.chunks = [encoded]
        self.size = self.buffered = len(encoded)
        self.skip = skip
        self.session.connection.count_partial(len(encoded))

    def _begin(self, frame: Transfer) -> None:
        """Process the first frame of a delivery."""
        self.transaction = None
        if self.credit <= 0 and not frame.resume and self.credit + self.credit_slack <= 0:
            raise LinkRefused(constants.LINK_TRANSFER_LIMIT_EXCEEDED, "the transfer exceeds the link credit")
        number = frame.delivery_id
        tag = frame.delivery_tag
        if number is None or tag is None:
            raise LinkRefused(
                constants.INVALID_FIELD, "the first transfer of a delivery requires a delivery-id and a delivery-tag"
            )
        if len(tag) > MAX_TAG:
            raise LinkRefused(constants.INVALID_FIELD, f"a delivery-tag of {len(tag)} bytes; expected at most {MAX_TAG}")
        if frame.message_format:
            raise LinkRefused(constants.NOT_IMPLEMENTED, f"message format {frame.message_format} is not supported")
        state = frame.state
        if state is not None and isinstance(state, TransactionalState):
            self.transaction = self._find_transaction(state)
        self.delivery_id = number
        self.tag = tag
        settled = frame.settled is True
        if settled and self.snd_settle_mode == 0 and not frame.aborted:
            raise LinkRefused(constants.NOT_ALLOWED, "the link has snd-settle-mode unsettled, but this delivery is settled")
        self.settled = settled
        mode = frame.rcv_settle_mode
        self.second = (self.rcv_settle_mode if mode is None else mode) == 1
        if self.second and self.rcv_settle_mode != 1 and not settled:
            raise _wrong_mode()
        self.ignored = False
        self.begun(frame)
        if frame.resume or self.known_tags_only:
            self._resume(frame)
        elif self.second and not settled and self.target is not None:
            self._begin_unsettled(self.target, number, tag)

    def _begin_unsettled(self, target: TargetTerminus, number: int, tag: bytes) -> None:
        """Start a delivery that the client will settle: its id and tag must be unused (transport 2.6.12)."""
        if number in self.session.unsettled:
            raise SessionRefused(constants.NOT_ALLOWED, f"delivery-id {number} belongs to an unsettled delivery")
        if tag in target.deliveries:
            raise LinkRefused(
                constants.NOT_ALLOWED,
                f"delivery-tag {tag!r} belongs to an unsettled delivery of the link; expected an unused one",
            )
        target.begin(self.session, number, tag)

    def begun(self, frame: Transfer) -> None:
        """Handle the first frame of a delivery, after its checks."""

    def _resume(self, frame: Transfer) -> None:
        """Process the first frame of a delivery that the client resumes."""
        if not frame.resume:
            raise LinkRefused(
                constants.NOT_ALLOWED,
                "a new delivery, but the unsettled map was incomplete at the attach: detach, and attach again",
            )
        self.resumed = None
        target = self.target
        delivery = None if target is None else target.deliveries.get(self.tag)
        if target is None or delivery is None:
            self.ignored = True
            return
        self.credit_slack += 1
        target.bind(delivery, self.session, self.delivery_id)
        if frame.aborted:
            target.forget(delivery)
            self.ignored = True
            return
        resumed = ResumedDelivery(self, delivery, frame)
        if resumed.stored:
            self.ignored = True
        elif not resumed.restore():
            self.ignored = True
            return
        self.resumed = resumed

    def _finish_resumed(self) -> None:
        """Complete the delivery at its terminus if the client has resumed it."""
        resumed = self.resumed
        if resumed is not None:
            self.resumed = None
            resumed.finish()

    def _find_transaction(self, state: TransactionalState) -> LocalTransaction:
        transaction = self.session.connection.transactions.find(state.txn_id)
        if transaction is None:
            raise LinkRefused(constants.TRANSACTION_UNKNOWN_ID, "a transfer under an unknown transaction")
        return transaction

    def _used(self) -> None:
        """Count a delivery against the credit."""
        self.delivery_count = (self.delivery_count + 1) & MASK
        self.credit -= 1
        if self.credit <= self.max_credit >> 1 and not self.behind:
            self.grant()

    def _finish(self, payload: bytes, stored: StoredBody | None = None) -> None:
        """Complete a delivery. With `stored`, its application data, the payload has only the other sections."""
        self._used()
        if self.ignored:
            self._finish_resumed()
            return
        if not self.settled and self.snd_settle_mode == 1:
            raise LinkRefused(
                constants.NOT_ALLOWED, "the link has snd-settle-mode settled, but this delivery is not settled"
            )
        if self.max_size and len(payload) > self.max_size:
            raise LinkRefused(
                constants.LINK_MESSAGE_SIZE_EXCEEDED,
                f"a message of {len(payload)} bytes; expected at most {self.max_size}; the setting is"
                " amqp.max_message_size",
            )
        self.stored = stored
        self.complete(payload)
        self.stored = None

    def complete(self, payload: bytes) -> None:
        """Process the complete message: publish it."""
        sections = split(payload)
        session = self.session
        if sections.message_annotations >= 0 or sections.delivery_annotations >= 0 or sections.footer >= 0:
            check_annotations(sections, session.connection.vhost.strict)
        check_values(sections)
        session.published += 1
        if self.exchange is None:
            self._publish_relayed(sections)
            return
        if self.topic is not None and self.topic.ended:
            raise LinkRefused(constants.RESOURCE_DELETED, self.topic.ending())
        key = self.routing_key
        address = self.address
        if key is None:
            subject = sections.subject
            address = _address(self.exchange, "" if subject is None else _text(subject))
        if sections.user_id is not None and not self._check_user(sections.user_id):
            return
        if self.rejects_durable and sections.durable:
            self._refuse(constants.PRECONDITION_FAILED, NOT_DURABLE)
            return
        self._publish(sections, address, self.accepts_all)

    def _publish(self, sections: Sections, address: bytes, accepts_all: bool) -> None:
        session = self.session
        connection = session.connection
        if self.exchange != CONTROL:
            connection.published_any = True
        vhost = connection.vhost
        route = self.route
        if (
            route is None
            or address is not self.address
            or self.topology != vhost.topology
            or self.generation != connection.users.generation
            or self.account is not connection.account
        ):
            route = connection.find_route(address)
            if address is self.address:
                self.route = route
                self.topology = vhost.topology
                self.generation = connection.users.generation
                self.account = connection.account
        self.latest_route = route
        message = make_message(sections, address, connection.broker.timers, connection.number)
        if self.stored is not None:
            message.body = self.stored
            message.size = self.stored.size
        elif message.size > connection.settings.spool_threshold:
            self._spool(message)
        queues = route.queues
        if route.dynamic:
            # A message in a transaction is published when the transaction is discharged.
            queues = (
                vhost.route_message(route, message, [], session.client)
                if self.transaction is None
                else vhost.queues_of(route, message, [])
            )
        elif self.transaction is None:
            route.published += 1
        due = 0
        if sections.message_annotations >= 0:
            timers = connection.broker.timers
            due = delivery_time(sections, timers.now(), timers.step)
        transaction = self.transaction
        if transaction is not None:
            self._post(transaction, message, route, not is_unroutable(queues), accepts_all, due)
            return
        full = ""
        if due or route.delay is not None:
            rejecting = push(route, message, queues, due)
            if rejecting is not None:
                full = rejecting.name
        else:
            for queue in queues:
                if not queue.push(message):
                    full = queue.name
        if len(queues) > WIDE_FANOUT:
            connection.broker.work += len(queues)
        if not queues and self.exchange == "":
            self._check_queue()
        if self.settled:
            return
        if full:
            unpublish(message, queues)
            self._reject("amqp:resource-limit-exceeded", f"queue '{full}' in vhost '{connection.vhost_name}' is full")
            return
        state = descriptors.ACCEPTED
        if not accepts_all and is_unroutable(queues):
            state = descriptors.RELEASED
            vhost.statistics.count_returned()
        row = message.row
        # A delayed message that is not durable may be in the overflow log.
        is_delayed = due or route.delay is not None
        batch = 0 if row is None or (is_delayed and row.log is not session.log) else session.log.filling
        session.resolved(self, self.delivery_id, batch, state, not self.second)

    def _check_queue(self) -> None:
        """Raise LinkRefused if the queue of the target was deleted."""
        name = self.routing_key
        connection = self.session.connection
        if name is not None and connection.vhost.find_queue(name) is None:
            raise LinkRefused(constants.RESOURCE_DELETED, f"queue '{name}' in vhost '{connection.vhost_name}' was deleted")

    def _post(
        self, transaction: LocalTransaction, message: Message, route: Route, routed: bool, accepts_all: bool, due: int
    ) -> None:
        """Add a message to a transaction, and report its provisional outcome (transactions section 4.4.1).

        For a settled message there is no outcome to report; the transaction fails if it would not be accepted (4.4.4.1).
        """
        session = self.session
        outcome = presumed(routed or accepts_all)
        if self.settled and not routed and not accepts_all:
            transaction.fail(
                f"no queue accepts a settled message to exchange '{message.exchange}'"
                f" with routing key '{message.routing_key}'"
            )
        transaction.post(
            Posting(
                self,
                message,
                route,
                self.delivery_id,
                self.second and not self.settled,
                session.broker.timers.now(),
                outcome,
                routed,
                due,
            )
        )
        if not self.settled:
            session.resolved(
                self, self.delivery_id, 0, descriptors.TRANSACTIONAL_STATE, not self.second, state_of(transaction, outcome)
            )

    def _publish_relayed(self, sections: Sections) -> None:
        """Publish a message to an anonymous terminus to the address in its `to`.

        If the address is invalid, reject the delivery; if the delivery cannot be rejected, end the link.
        """
        self.session.connection.broker.work += RESOLVED
        try:
            if sections.to is None:
                raise LinkRefused(constants.PRECONDITION_FAILED, "a message to the anonymous terminus has no 'to'")
            connection = self.session.connection
            destination = destinations.resolve(connection, _text(sections.to), destinations.capabilities_of(sections))
            if sections.durable and destination.rejects_durable:
                raise LinkRefused(constants.PRECONDITION_FAILED, NOT_DURABLE)
            key = destination.key
            if key is None:
                key = "" if sections.subject is None else _text(sections.subject)
            if sections.user_id is not None and not self._check_user(sections.user_id):
                return
            self._publish(sections, _address(destination.exchange, key), destination.accepts_all)
        except Refusal as refused:
            self._refuse_relayed(refused.condition, refused.text)
        except BrokerError as error:
            self._refuse_relayed(condition_of(error), str(error))

    def _refuse_relayed(self, condition: str, text: str) -> None:
        self.session.connection.broker.work += REFUSED
        if self.settled and self.transaction is not None:
            self.transaction.fail(text)
        self._refuse(condition, text)

    def _info(self) -> dict[str, Value] | None:
        """Return the error info for a message to an anonymous terminus, which names the delivery; None for other links."""
        return {"delivery-tag": self.tag} if self.exchange is None else None

    def _reject(self, condition: str, text: str) -> None:
        self.session.resolved(
            self, self.delivery_id, 0, descriptors.REJECTED, not self.second, self._rejected(condition, text)
        )

    def _rejected(self, condition: str, text: str) -> Composite:
        outcome = Rejected(make_error(condition, text, self._info()))
        transaction = self.transaction
        return outcome if transaction is None else TransactionalState(transaction.id, outcome)

    def _check_user(self, user_id: bytes) -> bool:
        connection = self.session.connection
        if connection.may_publish_as(user_id):
            return True
        text = f"user-id is '{user_id.decode('utf-8', 'replace')}', but the connection's user is '{connection.user}'"
        self._refuse(constants.UNAUTHORIZED_ACCESS, text)
        return False

    def _refuse(self, condition: str, text: str) -> None:
        """Reject the delivery; if it cannot be rejected, end the link."""
        if self.settled or not self.may_reject:
            raise LinkRefused(condition, text, self._info())
        self._reject(condition, text)

    def _spool(self, message: Message) -> None:
        """Move a large body out of memory if there is a spool."""
        spool = self.session.log.spool
        body: Body = message.body
        if spool is None or not isinstance(body, bytes):
            return
        stored = spool.begin(message.size, message.persistent)
        stored.append(body)
        message.body = stored

    def close(self) -> None:
        self._forget_chunks()
        self.route = None
        self.forget()
        if self.terminus is not None:
            self.terminus.destroy()

    def suspend(self) -> None:
        target = self.target
        if target is None:
            self.close()
            return
        # A message with too many sections to scan at each attach is dropped: the client sends it again from the start.
        if (
            self.chunks is not None
            and not self.ignored
            and self.transaction is None
            and (self.spooled_message is None or self.spooled_message.sections() <= section_offsets.MAX_SECTIONS)
        ):
            connection = self.session.connection
            # The part is copied, perhaps written, and its sections are counted.
            connection.broker.work += INTERRUPTED + (self.size >> 12)
            connection.published_any = True
            target.interrupt(self.tag, self._encoded(), max(self.max_size, MIN_PARTIAL_BYTES) if self.max_size else 0)
        self._forget_chunks()
        self.route = None
        self.forget()
        target.detached()


def check_values(sections: Sections) -> None:
    """Refuse a message whose sections before the body are too large to convert for a 0-9-1 consumer in one turn."""
    end = len(sections.data) if sections.body < 0 else sections.body
    if end > MAX_VALUES and count_values(sections.data, 0, end, MAX_VALUES) > MAX_VALUES:
        raise LinkRefused(
            constants.RESOURCE_LIMIT_EXCEEDED,
            f"the annotations and properties of a message have more than {MAX_VALUES} values, the maximum",
        )


def _wrong_mode() -> LinkRefused:
    return LinkRefused(
        constants.INVALID_FIELD, "a delivery with rcv-settle-mode second on a link with rcv-settle-mode first"
    )


def _address(exchange: str, key: str) -> bytes:
    try:
        return make_address(exchange, key)
    except ValueError as error:
        raise LinkRefused(constants.INVALID_FIELD, str(error)) from None


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        raise LinkRefused(constants.DECODE_ERROR, "expected UTF-8 in the properties of a message") from None


def _flow(session: SessionEndpoint, handle: int, delivery_count: int, credit: int) -> Flow:
    return Flow(
        session.incoming_window,
        session.next_outgoing_id,
        WINDOW,
        session.next_incoming_id,
        handle,
        delivery_count,
        credit,
        channel=session.channel,
    )

"""The work of a transaction until its discharge (transactions section 4.4).

Posted messages are in no queue until the discharge. Deliveries with an outcome stay acquired. A discharge is one log
commit, written in one turn, or in steps if it is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.delay import Delay
from leveret.broker.errors import BrokerError
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE, Message
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, destinations_of, is_unroutable
from leveret.broker.timers import Timed
from leveret.broker.transactions.transaction import ACCEPT, LARGE, REJECT, REQUEUE, Transaction
from leveret.management.descriptions import TransactionInfo
from leveret.protocols.amqp10.errors import make_error
from leveret.protocols.amqp10.session import outcomes
from leveret.protocols.amqp10.transaction import acquisition
from leveret.protocols.amqp10.transaction.acquisition import Acquired
from leveret.protocols.amqp10.transaction.retirement import Retirement
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Accepted, Rejected, Released
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Disposition
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink, Sending
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.transaction.coordinator import CoordinatorLink

# Error text for an internal error.
FAILURE: Final = "internal error; see the broker's log"
# Bytes of memory per posting, in addition to its body.
OVERHEAD: Final = 1000


class Posting:
    """A message that waits for the discharge.

    outcome  the outcome reported to the sender
    routed   whether a queue accepts the message
    due      delivery time; 0 means now
    link     the link on which it arrived
    """

    __slots__ = ("delivery_id", "due", "link", "message", "outcome", "route", "routed", "second", "sent_at", "session")

    def __init__(
        self,
        link: IncomingLink,
        message: Message,
        route: Route,
        delivery_id: int,
        second: bool,
        sent_at: int,
        outcome: Composite,
        routed: bool,
        due: int,
    ) -> None:
        self.link = link
        self.session = link.session
        self.message = message
        self.route = route
        self.delivery_id = delivery_id
        # Whether the client must settle it, and so receives the final outcome.
        self.second = second
        self.sent_at = sent_at
        self.outcome = outcome
        self.routed = routed
        self.due = due


class Deadline(Timed):
    """Timer that ends a transaction after its timeout."""

    def __init__(self, transaction: LocalTransaction) -> None:
        super().__init__()
        self.transaction: LocalTransaction | None = transaction

    def fire(self, now: int) -> None:
        if self.transaction is not None:
            self.transaction.time_out()


class LocalTransaction:
    """One transaction.

    Attributes:
        failed: reason why it cannot be committed; empty if it can.
        condition: error condition with which its discharge is then rejected.
        since: time of its declaration.
        links: links that acquire under it.
        acquired: deliveries acquired under it, including those that their session has already released.
        aborted: sessions and deliveries whose abort must be sent before the discharge is answered.
        committing: whether its commit is in progress. Its deliveries then no longer belong to their sessions.
    """

    def __init__(self, link: CoordinatorLink, id: bytes) -> None:
        self.link = link
        self.id = id
        self.postings: list[Posting] = []
        self.retirements: list[Retirement] = []
        self.size = 0
        self.failed = ""
        self.committing = False
        self.condition = constants.TRANSACTION_ROLLBACK
        self.links: list[OutgoingLink] = []
        self.acquired: list[Acquired] = []
        self.aborted: list[tuple[SessionEndpoint, Sending]] = []
        self.discharge = -1
        self.state: Composite | None = None
        self.deadline: Deadline | None = None
        timers = link.session.broker.timers
        self.since = timers.now()
        seconds = link.session.connection.own.transaction_timeout
        if seconds:
            self.deadline = Deadline(self)
            timers.at(timers.now() + int(seconds * 1000), self.deadline)

    def over(self) -> None:
        """End the transaction after its discharge, or because it can no longer be discharged."""
        if self.deadline is not None:
            self.link.session.broker.timers.cancel(self.deadline)
            self.deadline.transaction = None  # the timers may keep a reference for a while
            self.deadline = None

    def describe(self) -> TransactionInfo:
        """Describe the transaction for listings."""
        session = self.link.session
        connection = session.connection
        return TransactionInfo(
            vhost=connection.vhost_name,
            user=connection.user,
            connection=connection.number,
            channel=session.channel,
            kind="local",
            id=self.id.hex(),
            publishes=len(self.postings),
            settlements=len(self.retirements),
            size=self.size,
            state="committing" if self.committing else "failed" if self.failed else "open",
            reason=self.failed,
            age=max(session.broker.timers.now() - self.since, 0) / 1000,
        )

    def time_out(self) -> None:
        """Roll back after the timeout. The discharge will be rejected."""
        self.over()
        self.failed = (
            f"the transaction took more than {self.link.session.connection.own.transaction_timeout:g} s; the"
            " setting is amqp10.transaction_timeout"
        )
        self.condition = constants.TRANSACTION_TIMEOUT
        broker = self.link.session.broker
        broker.jobs.removals.add(self.rolling_back())
        broker.end_turn()

    def fail(self, reason: str) -> None:
        """Make the discharge roll the transaction back, whatever it asks for."""
        self.failed = reason

    def end_link(self) -> None:
        """End the control link of a failed transaction, which rolls the transaction back."""
        self.link.session.refuse(self.link, make_error(constants.TRANSACTION_ROLLBACK, self.failed))

    def begin_commit(self) -> None:
        """Take the deliveries from their sessions."""
        self.committing = True
        acquisition.end(self)

    def post(self, posting: Posting) -> None:
        """Add a message. If the transaction becomes too large, it can no longer be committed."""
        limit = self.link.session.connection.settings.max_transaction
        self.size += posting.message.size + OVERHEAD
        if self.size > limit:
            self.failed = f"the transaction exceeds {limit} bytes; the setting is limits.transaction_size"
            self.postings.clear()
        if not self.failed:
            self.postings.append(posting)

    def commit(self, discharge: int) -> None:
        """Commit the transaction. The outcome of the discharge is sent when the commit is on disk."""
        vhost = self.link.session.connection.vhost
        traced = vhost is not None and vhost.firehose.on
        large = traced or len(self.postings) + len(self.retirements) + len(self.acquired) > LARGE
        committing = _Committing(self, discharge, large)
        if large:
            for link in list(self.links):
                acquisition.leave(link)
            self.link.session.broker.jobs.commits.add(committing.pieces(), committing.written, committing.failed)
            return
        for units in committing.pieces():
            self.link.session.broker.work += units
        committing.written()

    def roll_back(self, discharge: int, state: Composite | None = None) -> None:
        """Roll back, in steps if necessary, then answer the discharge with `state`; None rejects the commit."""
        done = partial(self._rolled_back, discharge, state)
        if self.link.session.broker.jobs.run_steps(logged(self.rolling_back()), done):
            done()

    def _rolled_back(self, discharge: int, state: Composite | None) -> None:
        self.answer(discharge, Rejected(make_error(self.condition, self.failed)) if state is None else state)

    def rolling_back(self) -> Iterator[int]:
        """Drop the postings in steps. Return deliveries to their sessions, or requeue those that the client has settled."""
        postings = self.postings
        postings.reverse()
        while postings:
            posting = postings.pop()
            if posting.second and not posting.link.removed and not posting.session.closing:
                # The delivery no longer has an outcome.
                posting.session.connection.send(
                    Disposition(True, posting.delivery_id, None, False, None, channel=posting.session.channel)
                )
                yield 5
            yield 1
        yield from acquisition.undoing(self)
        sessions: dict[SessionEndpoint, None] = {}
        frozen = FrozenQueues()
        try:
            while self.retirements:
                retirement = self.retirements.pop()
                session = retirement.session
                sessions[session] = None
                if session.retiring.pop(retirement.number, None) is not None:
                    entry = retirement.entry
                    if retirement.settled or entry.holder is None or not entry.holder.active:
                        frozen.freeze(entry.queue)
                        retirement.forget_link_state()
                        outcomes.requeue(entry)
                    else:
                        session.unacked[retirement.number] = entry
                yield 2
        finally:
            frozen.thaw()
        for session in sessions:
            session.window_freed()

    def answer(self, discharge: int, state: Composite) -> None:
        """Send the outcome of the discharge after the aborts of incomplete deliveries."""
        self.discharge = discharge
        self.state = state
        for session, _ in self.aborted:
            session.pump()
        self.answer_when_sent()

    def answer_when_sent(self) -> None:
        link = self.link
        if any(session.sending and session.sending[0] is item for session, item in self.aborted):
            link.session.connection.transactions.wait_for_aborts(self)
            return
        self.aborted.clear()
        if self.state is not None and not link.closed and not link.session.closing:
            link.answer(self.discharge, self.state)


class OpenTransactions:
    """The transactions of a connection that are not yet discharged.

    Attributes:
        aborting: transactions whose discharge is answered once their acquired deliveries are aborted.
    """

    def __init__(self) -> None:
        self.aborting: list[LocalTransaction] = []
        self._by_id: dict[bytes, LocalTransaction] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, id: Checked) -> LocalTransaction | None:
        """Return the transaction of a txn-id; None if there is none."""
        return self._by_id.get(id) if isinstance(id, bytes) else None

    def describe(self) -> Iterator[TransactionInfo]:
        """Describe the transactions for listings."""
        for transaction in list(self._by_id.values()):
            yield transaction.describe()

    def declare(self, link: CoordinatorLink) -> LocalTransaction:
        """Begin a transaction for a control link."""
        id = self._next_id.to_bytes(8, "big")
        self._next_id += 1
        transaction = LocalTransaction(link, id)
        self._by_id[id] = transaction
        return transaction

    def discharge(self, transaction: LocalTransaction) -> None:
        """Remove a transaction that ends."""
        self._by_id.pop(transaction.id, None)

    def wait_for_aborts(self, transaction: LocalTransaction) -> None:
        """Answer the discharge of a transaction once the aborts of its deliveries are sent."""
        self.aborting.append(transaction)

    def aborts_sent(self) -> None:
        """Answer discharges whose aborts were sent."""
        if self.aborting:
            transactions = self.aborting
            self.aborting = []
            for transaction in transactions:
                transaction.answer_when_sent()


def _published(posting: Posting) -> list[Queue]:
    """Count a message as published, and return its queues."""
    route = posting.route
    vhost = posting.session.connection.vhost
    if route.dynamic:
        return [] if vhost is None else vhost.route_message(route, posting.message, [], posting.session.client)
    if vhost is not None:
        vhost.statistics.count(route.exchange, len(destinations_of(route.queues)))
    return route.queues


class _Committing:
    """A commit, in steps if it is large. Once its writing has begun, it is completed even if its links are closed."""

    def __init__(self, transaction: LocalTransaction, discharge: int, large: bool) -> None:
        self.transaction = transaction
        self.discharge = discharge
        self.large = large
        self.broker = transaction.link.session.broker
        self.broker_transaction = Transaction(self.broker.log)
        # Number of its log commit; 0 if nothing is durable.
        self.batch = 0
        # Outcomes that have not taken effect yet, and the sessions of their deliveries.
        self.retirements: list[Retirement] = []
        self.sessions: dict[SessionEndpoint, None] = {}
        # Entries and bytes added so far to queues that reject publishes at their limit.
        self.added: dict[Queue, tuple[int, int]] = {}

    def pieces(self) -> Iterator[int]:
        transaction = self.transaction
        try:
            yield from self._route()
        except BrokerError as error:
            if not self.large:
                raise
            transaction.fail(str(error))
        if transaction.failed:
            return
        transaction.begin_commit()
        self.retirements = transaction.retirements[:]
        yield from acquisition.forgetting(transaction)
        if self.large:
            self.broker_transaction.begin(self.broker.jobs)
        failure: Exception | None = None
        try:
            yield from self._write()
        except Exception as error:
            failure = error
        if failure is None:
            yield from self.broker_transaction.returning()
        else:
            yield from self.broker_transaction.undoing()
            yield from self.broker_transaction.requeuing()
        if self.large:
            self.broker_transaction.end()
        if failure is not None:
            yield from self._requeuing()
            raise failure

    def _route(self) -> Iterator[int]:
        """Determine the queues of the messages.

        A message that was reported as released goes to no queue, even if one has been bound since: the sender may have sent
        it elsewhere.
        """
        transaction = self.transaction
        now = self.broker.timers.now()
        broker_transaction = self.broker_transaction
        for posting in transaction.postings:
            message = posting.message
            if message.expires_at > AT_ONCE:
                message.expires_at += now - posting.sent_at  # its TTL starts with the discharge
            queues = _published(posting)
            if posting.outcome.kind == descriptors.RELEASED:
                queues = [queue for queue in queues if queue.observes]
            queues = [queue for queue in queues if not queue.deleted]
            if posting.routed and is_unroutable(queues):
                transaction.fail("the queue of an accepted message was deleted")
                return
            delay = posting.route.delay
            if self._exceeds(message, queues, posting.due, delay):
                transaction.fail("a queue is full")
                return
            broker_transaction.publish(message, queues, posting.due, delay)
            yield 2
        broker_transaction.forced = True  # `_exceeds` has checked that the queues have room

    def _exceeds(self, message: Message, queues: list[Queue], due: int, delay: Delay | None) -> bool:
        """Return whether a queue that rejects publishes at its limit has no room for this message."""
        for queue in queues:
            if queue.limits.always_accepts(message, due if delay is None else delay.due_in(queue, due)):
                continue
            count, size = self.added.get(queue, (0, 0))
            if queue.limits.would_exceed(size + message.size, count + 1):
                return True
            self.added[queue] = (count + 1, size + message.size)
        return False

    def _write(self) -> Iterator[int]:
        broker_transaction = self.broker_transaction
        retirements = self.retirements
        yield from broker_transaction.writing()
        retirements.reverse()
        durable = False
        while retirements:
            retirement = retirements.pop()
            self._leave_session(retirement)
            entry = retirement.entry
            durable = durable or entry.row is not None
            outcome = retirement.outcome
            retirement.forget_link_state()
            if outcome is not None and outcome.kind == descriptors.ACCEPTED:
                broker_transaction.write_settlement(entry, ACCEPT)
            else:
                broker_transaction.write_settlement(
                    entry,
                    REJECT if outcomes.is_final(entry, outcome) else REQUEUE,
                    partial(outcomes.apply_one, state=outcome),
                )
            yield 2
        filling = self.broker.log.filling
        broker_transaction.durable = broker_transaction.durable or durable
        self.batch = filling if durable else 0
        for posting in self.transaction.postings:
            if posting.second:
                delivery = posting.session.unsettled.get(posting.delivery_id)
                if delivery is not None:
                    delivery.discharged(posting.outcome, filling if posting.message.persistent else 0)
                yield 1

    def _leave_session(self, retirement: Retirement) -> None:
        session = retirement.session
        session.retiring.pop(retirement.number, None)
        self.sessions[session] = None

    def written(self) -> None:
        transaction = self.transaction
        if transaction.failed:
            transaction.roll_back(self.discharge)
            return
        for session in self.sessions:
            session.window_freed()
        self.broker_transaction.finish(self._on_disk, self.failed)

    def failed(self) -> None:
        """Handle an internal error, which is logged: end the control link, and requeue deliveries without an outcome."""
        transaction = self.transaction
        transaction.fail(FAILURE)
        self.broker.jobs.removals.add(self._requeuing())
        link = transaction.link
        if not link.closed and not link.session.closing:
            link.session.refuse(link, make_error(constants.INTERNAL_ERROR, FAILURE))

    def _requeuing(self) -> Iterator[int]:
        frozen = FrozenQueues()
        retirements = self.retirements
        retirements.reverse()
        try:
            while retirements:
                retirement = retirements.pop()
                self._leave_session(retirement)
                entry = retirement.entry
                frozen.freeze(entry.queue)
                outcomes.requeue(entry)
                yield 2
        finally:
            frozen.thaw()
        yield from self.transaction.rolling_back()

    def _on_disk(self) -> None:
        if self.broker.jobs.run_steps(self._notifying(), self._notified, self.failed):
            self._notified()

    def _notifying(self) -> Iterator[int]:
        """Send the outcomes that the client has not received yet."""
        transaction = self.transaction
        retirements = transaction.retirements
        retirements.reverse()
        while retirements:
            retirement = retirements.pop()
            # The client need not settle an outcome that has taken effect.
            if not retirement.settled and not retirement.link.removed and not retirement.session.closing:
                retirement.session.connection.send(
                    Disposition(
                        False, retirement.number, None, True, retirement.outcome, channel=retirement.session.channel
                    )
                )
                yield 5
            yield 0
        postings = transaction.postings
        postings.reverse()
        while postings:
            posting = postings.pop()
            if posting.second and not posting.link.removed and not posting.session.closing:
                posting.session.connection.send(
                    Disposition(True, posting.delivery_id, None, False, posting.outcome, channel=posting.session.channel)
                )
                yield 5
            yield 0

    def _notified(self) -> None:
        transaction = self.transaction
        link = transaction.link
        session = link.session
        if not session.closing and not link.closed:
            session.resolved(link, self.discharge, self.batch, descriptors.ACCEPTED, not link.second_mode)
            session.resolve()


def presumed(accepted: bool) -> Composite:
    """Return the provisional outcome of a posting."""
    return Accepted() if accepted else Released()


def state_of(transaction: LocalTransaction, outcome: Composite) -> TransactionalState:
    return TransactionalState(transaction.id, outcome)

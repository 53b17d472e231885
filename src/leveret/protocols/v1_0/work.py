"""What is done under a transaction until it is discharged (transactions section 4.4).

Messages that are posted are kept here until the discharge; they are in no queue. Outcomes that are given are kept, too:
the deliveries stay acquired. A discharge writes everything in one turn, so that it is one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.broker.message import AT_ONCE, Entry, Message
from leveret.broker.queues.base import Queue
from leveret.broker.routing import Route
from leveret.broker.transactions import Transaction
from leveret.protocols.v1_0 import outcomes
from leveret.protocols.v1_0.errors import make_error
from leveret.wire.amqp1 import constants, descriptors
from leveret.wire.amqp1.composite import Composite
from leveret.wire.amqp1.messaging import Accepted, Rejected, Released
from leveret.wire.amqp1.transactions import TransactionalState
from leveret.wire.amqp1.transport import Disposition

if TYPE_CHECKING:
    from leveret.protocols.v1_0.coordinator import CoordinatorLink
    from leveret.protocols.v1_0.endpoint import SessionEndpoint

# What a posting costs in memory beside its body.
OVERHEAD: Final = 1000


class Posting:
    """A message that waits for the discharge."""

    __slots__ = ("delivery_id", "message", "route", "second", "sent_at", "session")

    def __init__(self, session: SessionEndpoint, message: Message, route: Route, delivery_id: int, second: bool,
                 sent_at: int) -> None:
        self.session = session
        self.message = message
        self.route = route
        self.delivery_id = delivery_id
        # The client has still to settle it, so it is told what became of it.
        self.second = second
        self.sent_at = sent_at


class Retirement:
    """An outcome that waits for the discharge; `settled`: the client has forgotten the delivery."""

    __slots__ = ("entry", "number", "outcome", "session", "settled", "work")

    def __init__(self, session: SessionEndpoint, number: int, entry: Entry, outcome: Any, settled: bool,
                 work: Work) -> None:
        self.session = session
        self.number = number
        self.entry = entry
        self.outcome = outcome
        self.settled = settled
        self.work = work

    def forget_record(self) -> None:
        """The delivery is about to be settled, for good."""
        if self.session.recorded:
            self.session.forget_record(self.number, self.entry)


class Work:
    """One transaction. `failed`: why it cannot be committed any more, "" while it can."""

    def __init__(self, link: CoordinatorLink, id: bytes) -> None:
        self.link = link
        self.id = id
        self.postings: list[Posting] = []
        self.retirements: list[Retirement] = []
        self.size = 0
        self.failed = ""

    def post(self, posting: Posting) -> None:
        """Keep a message. It does not count where the transaction holds too much: that cannot be committed any more."""
        limit = self.link.session.connection.settings.max_transaction
        self.size += posting.message.size + OVERHEAD
        if self.size > limit:
            self.failed = (f"the transaction holds more than {limit} octets; the setting is limits.transaction_size")
            self.postings.clear()
        if not self.failed:
            self.postings.append(posting)

    def commit(self, discharge: int) -> None:
        """Do it all; the discharge is answered once it is on disk."""
        now = self.link.session.broker.timers.now()
        connection = self.link.session.connection
        transaction = Transaction(connection.broker.log)
        publishes = self._routed(now)
        if self._exceeds(publishes):
            self.failed = "a queue is full"
            self.roll_back(discharge)
            return
        for message, queues in publishes:
            transaction.publish(message, queues)
        durable = any(retirement.entry.row is not None for retirement in self.retirements)
        for retirement in reversed(self.retirements):
            retirement.session.retiring.pop(retirement.number, None)
            retirement.forget_record()
            outcomes.apply_one(retirement.entry, retirement.outcome)
        batch = connection.broker.log.filling if durable else 0
        for posting in self.postings:
            if posting.second:
                delivery = posting.session.unsettled.get(posting.delivery_id)
                if delivery is not None:
                    delivery.discharged(connection.broker.log.filling if posting.message.persistent else 0)
        transaction.commit(_Done(self, discharge, batch).done)

    def _routed(self, now: int) -> list[tuple[Message, list[Queue]]]:
        """The messages, with the queues that get them."""
        routed: list[tuple[Message, list[Queue]]] = []
        for posting in self.postings:
            message = posting.message
            if message.expires_at > AT_ONCE:
                message.expires_at += now - posting.sent_at  # its time starts with the discharge
            route = posting.route
            queues = route.queues
            if route.dynamic:
                queues = route_again(posting)
            routed.append((message, [queue for queue in queues if not queue.deleted]))
        return routed

    def _exceeds(self, publishes: list[tuple[Message, list[Queue]]]) -> bool:
        """Whether a queue that refuses what is too much would have to refuse any of it."""
        counts: dict[Queue, tuple[int, int]] = {}
        for message, queues in publishes:
            for queue in queues:
                if not queue.rejects_publish:
                    continue
                count, octets = counts.get(queue, (0, 0))
                hidden = queue.hidden
                if (0 <= queue.max_length <= queue.ready_count + len(hidden) + count) or (
                        0 <= queue.max_bytes < queue.ready_bytes + sum(hidden.values()) + octets + message.size):
                    return True
                counts[queue] = (count + 1, octets + message.size)
        return False

    def roll_back(self, discharge: int = -1) -> None:
        """Forget it all. What was delivered stays with the client, but for what it has settled. A discharge that asked for
        a commit is rejected."""
        self.postings.clear()
        for retirement in reversed(self.retirements):
            session = retirement.session
            if session.retiring.pop(retirement.number, None) is None:
                continue
            if retirement.settled or retirement.entry.holder is None or not retirement.entry.holder.active:
                retirement.forget_record()
                outcomes.give_back(retirement.entry)
            else:
                session.unacked[retirement.number] = retirement.entry
        self.retirements.clear()
        if discharge >= 0:
            self.link.answer(discharge, Rejected(make_error(constants.TRANSACTION_ROLLBACK, self.failed)))


def route_again(posting: Posting) -> list[Queue]:
    vhost = posting.session.connection.vhost
    if vhost is None:
        return []
    queues: list[Queue] = vhost.route_message(posting.route, posting.message, [])
    return queues


class _Done:
    """What happens when a transaction is on disk."""

    def __init__(self, work: Work, discharge: int, batch: int) -> None:
        self.work = work
        self.discharge = discharge
        self.batch = batch

    def done(self) -> None:
        work = self.work
        for retirement in work.retirements:
            # The client will not be asked to settle what has taken place.
            if not retirement.settled and not retirement.session.closing:
                retirement.session.connection.send(Disposition(
                    False, retirement.number, None, True, retirement.outcome, channel=retirement.session.channel))
        for posting in work.postings:
            if posting.second and not posting.session.closing:
                posting.session.connection.send(Disposition(
                    True, posting.delivery_id, None, False, Accepted(), channel=posting.session.channel))
        work.retirements.clear()
        work.postings.clear()
        session = work.link.session
        if not session.closing and not work.link.closed:
            session.resolved(self.discharge, self.batch, descriptors.ACCEPTED, not work.link.second_mode)
            session.resolve()


def presumed(queues: bool) -> Composite:
    """The outcome that a posting will have."""
    return Accepted() if queues else Released()


def state_of(work: Work, outcome: Composite) -> TransactionalState:
    return TransactionalState(work.id, outcome)

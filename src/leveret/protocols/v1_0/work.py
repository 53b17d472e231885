"""What is done under a transaction until it is discharged (transactions section 4.4).

Messages that are posted are kept here until the discharge; they are in no queue. Outcomes that are given are kept, too:
the deliveries stay acquired. A discharge writes everything in one turn, so that it is one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.message import AT_ONCE, Message
from leveret.broker.queues.base import Queue
from leveret.broker.routing import Route
from leveret.broker.timers import Timed
from leveret.broker.transactions import Transaction
from leveret.protocols.v1_0 import acquisition, outcomes
from leveret.protocols.v1_0.acquisition import Acquired
from leveret.protocols.v1_0.errors import make_error
from leveret.protocols.v1_0.retirement import Retirement
from leveret.wire.amqp1 import constants, descriptors
from leveret.wire.amqp1.composite import Composite
from leveret.wire.amqp1.messaging import Accepted, Rejected, Released
from leveret.wire.amqp1.transactions import TransactionalState
from leveret.wire.amqp1.transport import Disposition

if TYPE_CHECKING:
    from leveret.protocols.v1_0.coordinator import CoordinatorLink
    from leveret.protocols.v1_0.endpoint import SessionEndpoint
    from leveret.protocols.v1_0.incoming import IncomingLink
    from leveret.protocols.v1_0.outgoing import OutgoingLink, Sending

# What a posting costs in memory beside its body.
OVERHEAD: Final = 1000


class Posting:
    """A message that waits for the discharge. `outcome`: what its sender was told that it will have; `routed`: because a
    queue takes it; `due`: when it may be delivered, 0 for at once; link: what it came on."""

    __slots__ = ("delivery_id", "due", "link", "message", "outcome", "route", "routed", "second", "sent_at", "session")

    def __init__(self, link: IncomingLink, message: Message, route: Route, delivery_id: int, second: bool,
                 sent_at: int, outcome: Composite, routed: bool, due: int) -> None:
        self.link = link
        self.session = link.session
        self.message = message
        self.route = route
        self.delivery_id = delivery_id
        # The client has still to settle it, so it is told what became of it.
        self.second = second
        self.sent_at = sent_at
        self.outcome = outcome
        self.routed = routed
        self.due = due


class Deadline(Timed):
    """When a transaction has taken too long."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work: Work | None = work

    def fire(self, now: int) -> None:
        if self.work is not None:
            self.work.time_out()


class Work:
    """One transaction.

    failed    why it cannot be committed any more, "" while it can; `condition` is what its discharge is rejected with
    links     that acquire under it now
    acquired  what they have acquired; what a session has forgotten of it is left in the list
    aborted   deliveries whose abort must be sent before the discharge is answered, with their sessions
    """

    def __init__(self, link: CoordinatorLink, id: bytes) -> None:
        self.link = link
        self.id = id
        self.postings: list[Posting] = []
        self.retirements: list[Retirement] = []
        self.size = 0
        self.failed = ""
        self.condition = constants.TRANSACTION_ROLLBACK
        self.links: list[OutgoingLink] = []
        self.acquired: list[Acquired] = []
        self.aborted: list[tuple[SessionEndpoint, Sending]] = []
        self.discharge = -1
        self.state: Composite | None = None
        self.deadline: Deadline | None = None
        seconds = link.session.connection.own.transaction_timeout
        if seconds:
            timers = link.session.broker.timers
            self.deadline = Deadline(self)
            timers.at(timers.now() + int(seconds * 1000), self.deadline)

    def over(self) -> None:
        """It is discharged, or will never be."""
        if self.deadline is not None:
            self.link.session.broker.timers.cancel(self.deadline)
            self.deadline.work = None  # the timers may remember it for a while
            self.deadline = None

    def time_out(self) -> None:
        """It has taken too long: nothing of it is held any longer. Its discharge is told so."""
        self.over()
        self.failed = (f"the transaction took more than {self.link.session.connection.own.transaction_timeout:g} s; the"
                       " setting is amqp10.transaction_timeout")
        self.condition = constants.TRANSACTION_TIMEOUT
        self.roll_back()
        self.link.session.broker.end_turn()

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
        if any(posting.routed and not queues for posting, (_, queues) in zip(self.postings, publishes, strict=True)):
            self.failed = "the queue of a message was deleted after the message had been accepted"
        elif self._exceeds(publishes):
            self.failed = "a queue is full"
        if self.failed:
            self.roll_back(discharge)
            return
        acquisition.keep(self)
        for posting, (message, queues) in zip(self.postings, publishes, strict=True):
            transaction.publish(message, queues, posting.due)
        durable = any(retirement.entry.row is not None for retirement in self.retirements)
        for retirement in reversed(self.retirements):
            retirement.session.retiring.pop(retirement.number, None)
            retirement.forget_record()
            outcomes.apply_one(retirement.entry, retirement.outcome)
        self._make_room()
        batch = connection.broker.log.filling if durable else 0
        for posting in self.postings:
            if posting.second:
                delivery = posting.session.unsettled.get(posting.delivery_id)
                if delivery is not None:
                    delivery.discharged(posting.outcome,
                                        connection.broker.log.filling if posting.message.persistent else 0)
        transaction.commit(_Done(self, discharge, batch).done, durable)

    def _routed(self, now: int) -> list[tuple[Message, list[Queue]]]:
        """The messages, with the queues that get them. One that its sender was told would be released goes to none,
        whatever was declared since: its sender may have sent it elsewhere."""
        routed: list[tuple[Message, list[Queue]]] = []
        for posting in self.postings:
            message = posting.message
            if message.expires_at > AT_ONCE:
                message.expires_at += now - posting.sent_at  # its time starts with the discharge
            route = posting.route
            queues = route.queues
            if route.dynamic:
                queues = route_again(posting)
            if posting.outcome.kind == descriptors.RELEASED:
                queues = []
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
                delays = queue.delays
                later = 0 if delays is None else delays.bytes
                if (0 <= queue.max_length <= queue.ready_count + queue.delayed_count + len(hidden) + count) or (
                        0 <= queue.max_bytes < queue.ready_bytes + later + hidden.bytes + octets + message.size):
                    return True
                counts[queue] = (count + 1, octets + message.size)
        return False

    def roll_back(self, discharge: int = -1) -> None:
        """Forget it all. What was delivered stays with the client, but for what it has settled. A discharge that asked for
        a commit is rejected."""
        for posting in self.postings:
            if posting.second and not posting.link.gone and not posting.session.closing:
                # It has no outcome any more.
                posting.session.connection.send(Disposition(
                    True, posting.delivery_id, None, False, None, channel=posting.session.channel))
        self.postings.clear()
        acquisition.undo(self)
        for retirement in reversed(self.retirements):
            session = retirement.session
            if session.retiring.pop(retirement.number, None) is None:
                continue
            if retirement.settled or retirement.entry.holder is None or not retirement.entry.holder.active:
                retirement.forget_record()
                outcomes.give_back(retirement.entry)
            else:
                session.unacked[retirement.number] = retirement.entry
        self._make_room()
        self.retirements.clear()
        if discharge >= 0:
            self.answer(discharge, Rejected(make_error(self.condition, self.failed)))

    def _make_room(self) -> None:
        """Wake the links that waited for what has been settled or has gone back."""
        for session in {retirement.session for retirement in self.retirements}:
            session.connection.room_again(session)

    def answer(self, discharge: int, state: Composite) -> None:
        """Tell the outcome of the discharge, once everything that was acquired and not sent whole is aborted."""
        self.discharge = discharge
        self.state = state
        for session, _ in self.aborted:
            session.pump()
        self.answer_if_sent()

    def answer_if_sent(self) -> None:
        link = self.link
        if any(item in session.sending for session, item in self.aborted):
            link.session.connection.aborting.append(self)
            return
        self.aborted.clear()
        if self.state is not None and not link.closed and not link.session.closing:
            link.answer(self.discharge, self.state)


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
            if not retirement.settled and not retirement.link.gone and not retirement.session.closing:
                retirement.session.connection.send(Disposition(
                    False, retirement.number, None, True, retirement.outcome, channel=retirement.session.channel))
        for posting in work.postings:
            if posting.second and not posting.link.gone and not posting.session.closing:
                posting.session.connection.send(Disposition(
                    True, posting.delivery_id, None, False, posting.outcome, channel=posting.session.channel))
        work.retirements.clear()
        work.postings.clear()
        session = work.link.session
        if not session.closing and not work.link.closed:
            session.resolved(work.link, self.discharge, self.batch, descriptors.ACCEPTED, not work.link.second_mode)
            session.resolve()


def presumed(queues: bool) -> Composite:
    """The outcome that a posting will have."""
    return Accepted() if queues else Released()


def state_of(work: Work, outcome: Composite) -> TransactionalState:
    return TransactionalState(work.id, outcome)

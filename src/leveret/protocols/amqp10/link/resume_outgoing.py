"""Resumption of the unsettled deliveries of a source when a link is attached.

States without payload are sent at once. Deliveries with payload wait for credit, and precede new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.log import CommitWaiter
from leveret.broker.queues.frozen import FrozenQueues
from leveret.protocols.amqp10.link import resume_actions, section_offsets
from leveret.protocols.amqp10.link.outgoing import Sending
from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
from leveret.protocols.amqp10.messages import body_of, head_of, tail_of
from leveret.protocols.amqp10.session import outcomes
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Received
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.message import Entry
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.terminus.source import SourceTerminus, Unsettled


# Units of work to find a position in a message.
COUNTING: Final = 1000
# Units of work to resume a delivery, to send a state without payload, and to requeue a delivery.
RESUME_WORK: Final = 8
STATE_WORK: Final = 5
RETURN_WORK: Final = 3
# Units of work of a turn above which deliveries are resumed in the next turn.
MAX_RESUME_WORK: Final = 8000
# Units of work to compare deliveries, and the number that is settled, between two checks of the budget.
COMPARED_WORK: Final = 64
CONFIRMED_AT_ONCE: Final = 64
# Outcomes that requeue a delivery.
REQUEUING: Final = (descriptors.RELEASED, descriptors.MODIFIED)


class _SettledAfterCommit(CommitWaiter):
    """Waiter that settles deliveries at the client when their settlement is on disk."""

    def __init__(self, resumption: Resumption, settled: list[tuple[bytes, Checked]]) -> None:
        self.resumption = resumption
        self.settled = settled

    def committed(self, batch: int) -> None:
        link = self.resumption.link
        if not link.closed and not link.session.closing:
            self.resumption.send_settled(self.settled)
            link.send_flow()


class Resumption:
    """The deliveries that a link must resume.

    The broker's map and the client's are compared in steps, while deliveries are resumed that were compared already. What
    the steps have not reached stays in the terminus, also if the link is detached meanwhile.

    Attributes:
        incomplete: whether one of the maps was incomplete. Then, nothing new is sent until the link is attached again.
        comparing: whether the maps are still being compared.
        pending: tags of the deliveries, with their states at the receiver.
    """

    def __init__(self, link: OutgoingLink, terminus: SourceTerminus, remote: RemoteUnsettledMap, incomplete: bool) -> None:
        self.link = link
        self.terminus = terminus
        self.remote = remote
        self.incomplete = incomplete
        self.comparing = True
        self.pending: deque[tuple[bytes, Checked]] = deque()
        # Whether states were sent without payload.
        self.stated = False

    def compare(self, tags: list[bytes]) -> None:
        """Compare the broker's map with the client's in steps, and send states that need no payload."""
        link = self.link
        failed = partial(link.consumer.failed, "its unsettled deliveries cannot be resumed")
        if link.session.broker.jobs.run_steps(self._comparing(tags), self._compared, failed):
            self._end_comparison()

    def is_busy(self) -> bool:
        """Return whether the link will send more without new credit."""
        return self.comparing or (self.link.credit > 0 and len(self.pending) > 0)

    def _compared(self) -> None:
        if not self.link.closed:
            self._end_comparison()
            self.link.session.connection.mark()  # drains wait for the end
            self.advance()

    def _end_comparison(self) -> None:
        self.comparing = False
        if self.stated:
            # It is unspecified whether transfers without payload count as deliveries, so send the delivery-count.
            self.link.send_flow()

    def _comparing(self, tags: list[bytes]) -> Iterator[int]:
        link = self.link
        terminus = self.terminus
        remote = self.remote
        returned: list[tuple[bytes, Checked]] = []
        settled: list[tuple[bytes, Checked]] = []
        work = 0
        yield from terminus.storing()
        if link.closed:
            return
        for tag in tags:
            if work >= COMPARED_WORK:
                settled = self._confirm(settled)
                yield work
                work = 0
                if link.closed:
                    return
            work += 1
            item = terminus.unsettled.get(tag)
            if item is None:
                continue
            local = item.state
            known = tag in remote.states
            state = remote.states.get(tag)
            action = resume_actions.decide(local, known, state, remote.incomplete)
            if action == resume_actions.WAIT:
                continue
            if action == resume_actions.RESUME:
                self.pending.append((tag, state))
                continue
            returns = item.entry is not None and not resume_actions.is_outcome(local)
            if action == resume_actions.ABORT:
                work += STATE_WORK
                self._abort(link.take_delivery_id(), tag)
                self.stated = True
            if action == resume_actions.SETTLE and returns and state is not None and state.kind in REQUEUING:
                returned.append((tag, state))
            elif returns and action != resume_actions.SETTLE:
                returned.append((tag, None))
            else:
                work += STATE_WORK
                terminus.settle(tag)
                if action == resume_actions.SETTLE:
                    if item.entry is not None and returns:
                        outcomes.apply_one(item.entry, state)
                    settled.append((tag, state))
                elif action == resume_actions.RESTATE:
                    self._send_state(tag, False, local)
                    self.stated = True
        yield work
        frozen = FrozenQueues()
        try:
            # Youngest first, so that each is requeued in front of the previous one.
            while returned and not link.closed:
                tag, state = returned.pop()
                entry = self._return(tag, state, frozen)
                if entry and state is not None:
                    settled.append((tag, state))
                    if len(settled) >= CONFIRMED_AT_ONCE:
                        settled = self._confirm(settled)
                yield RETURN_WORK
        finally:
            frozen.thaw()
        self._confirm(settled)

    def _return(self, tag: bytes, state: Checked, frozen: FrozenQueues) -> bool:
        """Requeue a delivery by the state of the receiver, or because that has not received it.

        Return whether the terminus still had it.
        """
        terminus = self.terminus
        if tag not in terminus.unsettled:
            return False
        entry = terminus.settle(tag).entry
        if entry is not None:
            frozen.freeze(entry.queue)
            if state is not None:
                outcomes.apply_one(entry, state)
            elif self.remote.given:
                entry.queue.requeue(entry, False)
            else:
                # The client lost all state, so the result of a delivery is unknown.
                source = terminus.source
                outcomes.settle_by(entry, None if source is None else source.default_outcome)
        return True

    def _confirm(self, settled: list[tuple[bytes, Checked]]) -> list[tuple[bytes, Checked]]:
        """Settle deliveries at the receiver after its outcomes were applied. Return a new list."""
        if not settled:
            return settled
        if self.terminus.stores_unsettled():
            # The client will forget them, so they must not be delivered again after a crash.
            self.link.session.log.wait(_SettledAfterCommit(self, settled))
        else:
            self.stated = True
            self.send_settled(settled)
        return []

    def advance(self) -> None:
        """Resume deliveries while there is credit, then start the link."""
        link = self.link
        session = link.session
        broker = session.broker
        unsettled = self.terminus.unsettled
        pending = self.pending
        while pending:
            if link.credit <= 0 or session.sending or not session.has_window():
                return
            if broker.work >= MAX_RESUME_WORK:
                session.connection.wake_soon()
                return
            broker.work += RESUME_WORK
            tag, state = pending.popleft()
            item = unsettled.get(tag)
            if item is None:
                continue
            number = link.use_credit()
            entry = item.entry
            if entry is None or entry.queue.deleted or self._is_too_large(entry, item):
                self.terminus.settle(tag)
                if entry is not None:
                    # A deleted queue settles it. Another one offers it again, which checks its size again.
                    entry.queue.requeue(entry, False)
                self._abort(number, tag)
            else:
                self._resume(number, tag, entry, self.terminus.take(tag), state)
        if not self.comparing and not self.incomplete:
            link.end_resumption()

    def _is_too_large(self, entry: Entry, item: Unsettled) -> bool:
        """Return whether a delivery exceeds the max-message-size of the new link."""
        link = self.link
        if not link.max_size:
            return False
        head = head_of(entry, link.session.broker.timers) if item.head is None else item.head
        return link.exceeds_size(entry.message, head) > 0

    def _resume(self, number: int, tag: bytes, entry: Entry, item: Unsettled, state: Checked) -> None:
        """Send a delivery from the position in the receiver's state."""
        link = self.link
        session = link.session
        consumer = link.consumer
        message = entry.message
        head = item.head
        if head is None:
            head = head_of(entry, session.broker.timers)
        body = body_of(message)
        tail = tail_of(message)
        at = 0
        if isinstance(state, Received):
            session.connection.broker.work += COUNTING
            at = section_offsets.offset_of(head, body, tail, state.section_number, state.section_offset)
        settlement.assign(entry, consumer)
        if consumer.no_ack:
            entry.queue.settle(entry)
        else:
            session.unacked[number] = entry
            link.tags[number] = tag
            link.freeze(number, head)
        session.send(
            Sending(link, number, tag, consumer.no_ack, head, body, tail, state=state if at else None, resume=True, at=at)
        )

    def send_settled(self, settled: list[tuple[bytes, Checked]]) -> None:
        """Settle deliveries at the receiver after its outcomes were applied."""
        for tag, state in settled:
            self._send_state(tag, True, state)

    def _send_state(self, tag: bytes, settled: bool, state: Composite | None) -> None:
        """Send the state of a delivery without payload."""
        link = self.link
        link.session.send(Sending(link, link.take_delivery_id(), tag, settled, b"", b"", b"", state=state, resume=True))

    def _abort(self, number: int, tag: bytes) -> None:
        """Abort a delivery that cannot be resumed."""
        link = self.link
        link.session.send(Sending(link, number, tag, False, b"", b"", b"", resume=True, aborted=True))

"""Resumption of the unsettled deliveries of a source when a link is attached.

States without payload are sent at once. Deliveries with payload wait for credit, and precede new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.log import CommitWaiter
from leveret.broker.queues import entry_return
from leveret.protocols.amqp10.link import resume_actions, section_offsets
from leveret.protocols.amqp10.link.outgoing import Sending
from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
from leveret.protocols.amqp10.messages import body_of, head_of, tail_of
from leveret.protocols.amqp10.session import outcomes
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Received
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.message import Entry
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.terminus.source import SourceTerminus, Unsettled


# Units of work to find a position in a message.
COUNTING: Final = 1000


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


def _release(entry: Entry) -> None:
    entry.queue.requeue(entry, False)


class Resumption:
    """The deliveries that a link must resume.

    Attributes:
        incomplete: whether one of the maps was incomplete. Then, nothing new is sent until the link is attached again.
        pending: tags of the deliveries, with their states at the receiver.
    """

    def __init__(self, link: OutgoingLink, terminus: SourceTerminus, incomplete: bool) -> None:
        self.link = link
        self.terminus = terminus
        self.incomplete = incomplete
        self.pending: deque[tuple[bytes, Checked]] = deque()

    def compare(self, states: dict[bytes, Checked], remote: RemoteUnsettledMap) -> None:
        """Compare the broker's map with the client's, and send states that need no payload."""
        terminus = self.terminus
        unsent: list[Entry] = []
        settled: list[tuple[bytes, Checked]] = []
        before = self.link.delivery_count
        for tag, local in states.items():
            known = tag in remote.states
            state = remote.states.get(tag)
            action = resume_actions.decide(local, known, state, remote.incomplete)
            if action == resume_actions.WAIT:
                continue
            if action == resume_actions.RESUME:
                self.pending.append((tag, state))
                continue
            item = terminus.settle(tag)
            if action == resume_actions.SEND_AGAIN:
                if item.entry is not None:
                    unsent.append(item.entry)
            elif action == resume_actions.SETTLE:
                if item.entry is not None and not resume_actions.is_outcome(local):
                    outcomes.apply_one(item.entry, state)
                settled.append((tag, state))
            elif action == resume_actions.RESTATE:
                self._send_state(tag, False, local)
            elif action == resume_actions.ABORT:
                self._abort(self.link.take_delivery_id(), tag)
                if item.entry is not None and not resume_actions.is_outcome(local):
                    unsent.append(item.entry)
        if settled and terminus.stores_unsettled():
            # The client will forget them, so they must not be delivered again after a crash.
            self.link.session.log.wait(_SettledAfterCommit(self, settled))
        else:
            self.send_settled(settled)
        apply: Callable[[Entry], None] = _release
        if not remote.given:
            # The client lost all state, so the result of a delivery is unknown.
            source = terminus.source
            apply = partial(outcomes.settle_by, default=None if source is None else source.default_outcome)
        entry_return.return_entries(self.link.session.broker, unsent, apply)
        if self.link.delivery_count != before:
            # It is unspecified whether transfers without payload count as deliveries, so send the delivery-count.
            self.link.send_flow()

    def advance(self) -> None:
        """Resume deliveries while there is credit, then start the link."""
        link = self.link
        session = link.session
        pending = self.pending
        while pending:
            if link.credit <= 0 or not session.has_window():
                return
            tag, state = pending.popleft()
            number = link.use_credit()
            entry = self.terminus.unsettled[tag].entry
            if entry is None or entry.queue.deleted:
                self.terminus.settle(tag)
                self._abort(number, tag)
            else:
                self._resume(number, tag, entry, self.terminus.take(tag), state)
        if not self.incomplete:
            link.end_resumption()

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

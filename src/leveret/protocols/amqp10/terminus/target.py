"""Targets to which clients send, and their unsettled deliveries (transport section 2.6.12).

With receiver settle mode first, a delivery is settled with its outcome; a client that misses the outcome sends the message
again.
With mode second, the outcome is kept until the client settles, so that a resumed delivery is not stored twice. The
received part of an interrupted delivery is kept too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.link import section_offsets
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.protocols.amqp10.terminus.terminus import UNSETTLED_STATE, Key, Terminus
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Accepted, Received, Released
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.link.pending_attach import PendingAttach
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.recovery import TerminusRecovery
    from leveret.protocols.amqp10.terminus.registry import TerminusRegistry
    from leveret.wire.amqp10.messaging import Target


# Units of work to forget a delivery, and between two checks of the budget.
FORGET_WORK: Final = 4
FORGOTTEN_WORK: Final = 64


class IncomingDelivery:
    """A delivery that is not yet settled at both ends.

    Attributes:
        session: session that has its delivery-id; None while it is suspended.
        number: its delivery-id in that session.
        state: descriptor of its outcome; 0 if there is none yet.
        answer: the outcome itself if it has fields.
        batch: commit that the outcome or the part waits for; 0 for none.
        partial: received part of an interrupted delivery; None otherwise.
        end: position after `partial`; None until it is computed.
        kept: whether its outcome is in the log.
        kept_part: whether its received part is in the log.
    """

    __slots__ = ("answer", "batch", "end", "kept", "kept_part", "number", "partial", "session", "state", "tag", "terminus")

    def __init__(self, terminus: TargetTerminus, tag: bytes) -> None:
        self.terminus = terminus
        self.tag = tag
        self.session: SessionEndpoint | None = None
        self.number = 0
        self.state = 0
        self.answer: Composite | None = None
        self.batch = 0
        self.partial: bytes | None = None
        self.end: Received | None = None
        self.kept = False
        self.kept_part = False

    def resolve(self, state: int, answer: Composite | None, batch: int) -> None:
        """Set the outcome, which is valid when `batch`, the current log commit, is on disk; 0 means now."""
        known = self.state
        self.state = state
        self.answer = answer
        self.batch = batch
        if batch and not known:
            self.terminus.store(self)

    def discharged(self, outcome: Composite, batch: int) -> None:
        """Set the final outcome when the delivery's transaction is committed."""
        self.state = 0
        plain = outcome.kind in (descriptors.ACCEPTED, descriptors.RELEASED)
        self.resolve(outcome.kind, None if plain else outcome, batch)

    def outcome(self) -> Composite | None:
        """Return its outcome as an object; None if there is none yet."""
        if self.answer is not None:
            return self.answer
        if self.state == descriptors.ACCEPTED:
            return Accepted()
        return Released() if self.state == descriptors.RELEASED else None

    def reported_state(self, committed: int) -> Composite | None:
        """Return its state for the unsettled map of an attach; None if the state is not on disk."""
        if self.state:
            return self.outcome() if self.batch <= committed else None
        if self.partial is None or self.batch > committed:
            return None
        if self.end is None:
            try:
                self.end = Received(*section_offsets.end_of(self.partial))
            except DecodeError:
                self.end = Received(0, 0)  # too many sections to search: resume from the start
        return self.end


class TargetTerminus(Terminus):
    """A target; `deliveries` are the unsettled ones by tag."""

    def __init__(self, registry: TerminusRegistry, key: Key) -> None:
        super().__init__(registry, key)
        self.target: Target | None = None
        self.deliveries: dict[bytes, IncomingDelivery] = {}

    def attach_sender(self, link: IncomingLink, description: Target) -> None:
        """Attach a link on which the client sends."""
        self.attach(link, description)
        link.bind(self)

    def attach(self, link: Link, description: Checked) -> None:
        super().attach(link, description)
        self.target = description

    def description(self) -> Checked:
        return self.target

    def begin(self, session: SessionEndpoint, number: int, tag: bytes) -> IncomingDelivery:
        """Begin a delivery that the client will settle."""
        delivery = IncomingDelivery(self, tag)
        self.deliveries[tag] = delivery
        self.bind(delivery, session, number)
        return delivery

    def bind(self, delivery: IncomingDelivery, session: SessionEndpoint, number: int) -> None:
        """Bind a delivery to a delivery-id of a session."""
        self._unbind(delivery)
        delivery.session = session
        delivery.number = number
        session.unsettled[number] = delivery

    def interrupt(self, tag: bytes, data: bytes, max_partial: int) -> None:
        """Keep the received part of an incomplete delivery whose link is detached.

        Args:
            tag: the delivery-tag.
            data: the bytes received so far.
            max_partial: limit on the bytes of all interrupted deliveries together; 0 is no limit. A part beyond it is
                dropped.
        """
        if max_partial and self.registry.partial + len(data) > max_partial:
            return
        delivery = self.deliveries.get(tag)
        if delivery is None:
            delivery = self.deliveries[tag] = IncomingDelivery(self, tag)
        self.drop_partial(delivery)
        delivery.partial = data
        self.registry.partial += len(data)
        if self.durable == UNSETTLED_STATE:
            log = self.registry.broker.log
            terminus_store.put_part(log, self.id, tag, data)
            delivery.kept_part = True
            delivery.batch = log.filling

    def drop_partial(self, delivery: IncomingDelivery) -> None:
        """Drop the stored part of a delivery."""
        if delivery.partial is not None:
            self.registry.partial -= len(delivery.partial)
            delivery.partial = None
            delivery.end = None

    def forget(self, delivery: IncomingDelivery) -> None:
        """Forget a delivery that is settled at both ends, or aborted."""
        self.drop_partial(delivery)
        log = self.registry.broker.log
        if delivery.kept:
            delivery.kept = False
            terminus_store.remove_delivery(log, self.id, delivery.tag)
        self._forget_part(delivery)
        if self.deliveries.get(delivery.tag) is delivery:
            del self.deliveries[delivery.tag]
        self._unbind(delivery)

    def _forget_part(self, delivery: IncomingDelivery) -> None:
        if delivery.kept_part:
            delivery.kept_part = False
            terminus_store.remove_part(self.registry.broker.log, self.id, delivery.tag)

    # In the log

    def store(self, delivery: IncomingDelivery) -> None:
        """Write the outcome of a delivery to the log, in the commit of its message."""
        if self.durable != UNSETTLED_STATE:
            return
        outcome = delivery.outcome()
        if outcome is not None:
            delivery.kept = True
            terminus_store.put_outcome(self.registry.broker.log, self.id, delivery.tag, outcome)
        self._forget_part(delivery)

    def restore(self, description: Checked, id: str, attached: int) -> None:
        super().restore(description, id, attached)
        self.target = description

    def restore_delivery(self, recovery: TerminusRecovery, tag: bytes, value: bytes) -> bool:
        outcome = terminus_store.outcome_of(value)
        delivery = self.deliveries[tag] = IncomingDelivery(self, tag)
        delivery.state = outcome.kind
        delivery.answer = outcome
        delivery.kept = True
        return True

    def restore_part(self, tag: bytes, data: bytes) -> bool:
        delivery = self.deliveries.get(tag)
        if delivery is None:
            delivery = self.deliveries[tag] = IncomingDelivery(self, tag)
            delivery.partial = data
            self.registry.partial += len(data)
        delivery.kept_part = True
        return True

    def _unbind(self, delivery: IncomingDelivery) -> None:
        session = delivery.session
        if session is not None:
            delivery.session = None
            if session.unsettled.get(delivery.number) is delivery:
                del session.unsettled[delivery.number]

    def collect(self) -> None:
        """Detach the deliveries from their session. Forget those under a transaction, which was rolled back."""
        for delivery in list(self.deliveries.values()):
            if delivery.state == descriptors.TRANSACTIONAL_STATE or (not delivery.state and delivery.partial is None):
                self.forget(delivery)
            else:
                self._unbind(delivery)

    def preparing(self, pending: PendingAttach) -> Iterator[int]:
        """Forget the deliveries that are not in the client's map: it has settled them. Encode the others."""
        if not self.attached or pending.continues:
            return
        remote = pending.remote
        work = 0
        if not remote.incomplete:
            for delivery in list(self.deliveries.values()):
                if delivery.tag not in remote.states:
                    self.forget(delivery)
                    work += FORGET_WORK
                    if work >= FORGOTTEN_WORK:
                        yield work
                        work = 0
        yield work
        yield from pending.encode(list(self.deliveries)).encoding(self._reported_state, remote)

    def _reported_state(self, tag: bytes) -> Composite | None:
        delivery = self.deliveries.get(tag)
        return None if delivery is None else delivery.reported_state(self.registry.broker.log.committed)

    def drop(self) -> None:
        for delivery in list(self.deliveries.values()):
            self.forget(delivery)

    def unsettled_count(self) -> int:
        return len(self.deliveries)

    def address(self) -> str:
        return "" if self.target is None else str(self.target.address or "")

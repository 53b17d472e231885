"""Deliveries that a client resumes (transport section 2.6.13): data received before is not stored twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.link import resume_actions, section_offsets
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.messaging import Received
from leveret.wire.amqp10.transport import Disposition

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.terminus.target import IncomingDelivery, TargetTerminus
    from leveret.wire.amqp10.transport import Transfer


def begin(link: IncomingLink, target: TargetTerminus, frame: Transfer) -> None:
    """Process the first frame of a resumed delivery. An unknown delivery is ignored."""
    delivery = target.deliveries.get(link.tag)
    if delivery is None:
        link.ignored = True
        return
    link.credit_slack += 1
    target.bind(delivery, link.session, link.delivery_id)
    if frame.aborted:
        target.forget(delivery)
        link.ignored = True
    elif delivery.state:
        link.ignored = True
        link.replayed = delivery
        link.sender_state = frame.state
    else:
        _resume(link, target, delivery, frame)


def _resume(link: IncomingLink, target: TargetTerminus, delivery: IncomingDelivery, frame: Transfer) -> None:
    """Append to the received part of a delivery, and skip repeated bytes."""
    data = delivery.partial or b""
    at = 0
    if isinstance(frame.state, Received):
        at = section_offsets.offset_in(data, frame.state.section_number, frame.state.section_offset)
        if at > len(data):
            raise LinkRefused(
                constants.INVALID_FIELD,
                f"a delivery is resumed at section {frame.state.section_number},"
                f" offset {frame.state.section_offset}, but the broker does not have the preceding part",
            )
    elif resume_actions.is_outcome(frame.state):
        # The sender's outcome is final, regardless of the received part.
        target.forget(delivery)
        link.ignored = True
        return
    target.drop_partial(delivery)
    link.restore_partial(data, len(data) - at)
    link.resumed_delivery = delivery


def finish(link: IncomingLink, delivery: IncomingDelivery) -> None:
    """Complete a resumed delivery. With receiver settle mode second, it stays until the client settles it."""
    link.resumed_delivery = None
    if link.settled or not link.second:
        delivery.terminus.forget(delivery)


def answer(link: IncomingLink, delivery: IncomingDelivery) -> None:
    """Reply to a resumed delivery that is already stored: repeat its outcome, or adopt the sender's."""
    session = link.session
    state = link.sender_state
    if link.settled:
        delivery.terminus.forget(delivery)
    elif resume_actions.is_outcome(state):
        delivery.terminus.forget(delivery)
        session.connection.send(Disposition(True, link.delivery_id, None, True, state, channel=session.channel))
    else:
        session.resolved(link, link.delivery_id, delivery.batch, delivery.state, not link.second, delivery.answer)
        if not link.second:
            delivery.terminus.forget(delivery)

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
    from leveret.protocols.amqp10.terminus.target import IncomingDelivery
    from leveret.wire.amqp10.transport import Transfer


class ResumedDelivery:
    """The delivery that a client is resuming on a link.

    Attributes:
        delivery: its state at the terminus.
        stored: whether its outcome is known, so that its payload is ignored.
        sender_state: its state at the sender.
    """

    __slots__ = ("delivery", "link", "sender_state", "stored")

    def __init__(self, link: IncomingLink, delivery: IncomingDelivery, frame: Transfer) -> None:
        self.link = link
        self.delivery = delivery
        self.stored = delivery.state != 0
        self.sender_state = frame.state

    def restore(self) -> bool:
        """Continue with the received part, and skip repeated bytes. Return False if the sender's outcome is final.

        Raises:
            LinkRefused: the sender resumes after the received part.
        """
        link = self.link
        delivery = self.delivery
        state = self.sender_state
        data = delivery.partial or b""
        at = 0
        if isinstance(state, Received):
            at = section_offsets.offset_in(data, state.section_number, state.section_offset)
            if at > len(data):
                raise LinkRefused(
                    constants.INVALID_FIELD,
                    f"a delivery is resumed at section {state.section_number}, offset {state.section_offset},"
                    " but the broker does not have the preceding part",
                )
        elif resume_actions.is_outcome(state):
            # The sender's outcome is final, regardless of the received part.
            delivery.terminus.forget(delivery)
            return False
        delivery.terminus.drop_partial(delivery)
        link.restore_partial(data, len(data) - at)
        return True

    def finish(self) -> None:
        """Complete the delivery, or reply to it if it was stored before.

        With receiver settle mode second, a new one stays until the client settles it.
        """
        if self.stored:
            self._answer()
        elif self.link.settled or not self.link.second:
            self.delivery.terminus.forget(self.delivery)

    def _answer(self) -> None:
        """Repeat the outcome of a stored delivery, or adopt the sender's."""
        link = self.link
        delivery = self.delivery
        session = link.session
        state = self.sender_state
        if link.settled:
            delivery.terminus.forget(delivery)
        elif resume_actions.is_outcome(state):
            delivery.terminus.forget(delivery)
            session.connection.send(Disposition(True, link.delivery_id, None, True, state, channel=session.channel))
        else:
            session.resolved(link, link.delivery_id, delivery.batch, delivery.state, not link.second, delivery.answer)
            if not link.second:
                delivery.terminus.forget(delivery)

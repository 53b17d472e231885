"""Links of distribution mode copy (messaging section 3.5.2): deliveries stay in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.queues.base import Queue
from leveret.protocols.amqp10.outgoing import LinkConsumer, OutgoingLink

if TYPE_CHECKING:
    from leveret.broker.message import Entry


class BrowsingConsumer(LinkConsumer):
    """The consumer of a browsing link. Its deliveries are copies; their outcomes are ignored.

    Attributes:
        seen: entries that earlier links of the terminus have seen, which are not sent again.
    """

    def __init__(self, link: OutgoingLink, queue: Queue, no_ack: bool, seen: dict[int, int]) -> None:
        super().__init__(link, queue, no_ack, False)
        self.seen = seen

    def deliver(self, entry: Entry) -> None:
        session = self.link.session
        number = session.next_delivery_id
        super().deliver(entry)
        if not self.no_ack:
            del session.unacked[number]
            session.copies[number] = self.link

    def wake(self) -> None:
        self.parked = False
        if self.active:
            self.queue.activate()

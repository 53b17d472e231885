"""Quorum queues (`x-queue-type: quorum`): classic queues that behave towards clients as RabbitMQ's quorum queues do.

They are not replicated.
"""

from __future__ import annotations

from typing import ClassVar, Final

from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue_type import QueueType


class QuorumQueue(ClassicQueue):
    """One quorum queue of one vhost."""

    counts_deliveries: ClassVar[bool] = True
    announces_activity: ClassVar[bool] = True

    def get(self, no_ack: bool, audience: int = 0, scope: object | None = None) -> Entry | None:
        # As in RabbitMQ, a get has the count even if it is 0.
        entry = super().get(no_ack, audience, scope)
        if entry is not None and not entry.delivery_count:
            self.show_deliveries(entry)
        return entry


TYPE: Final[QueueType] = QueueType(
    "quorum",
    QuorumQueue,
    defaults={"x-delivery-limit": 20},
    durable=True,
    apply_to="quorum_queues",
    serves_unindexed=True,
)

"""Quorum queues (`x-queue-type: quorum`): classic queues that behave towards clients as RabbitMQ's quorum queues do.

They are not replicated. The registry gives them a delivery limit by default.
"""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.queues.classic.queue import ClassicQueue


class QuorumQueue(ClassicQueue):
    """One quorum queue of one vhost."""

    counts_deliveries: ClassVar[bool] = True
    announces_activity: ClassVar[bool] = True

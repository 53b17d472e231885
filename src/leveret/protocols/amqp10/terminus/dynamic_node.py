"""Dynamic nodes, which are created for a link, and their lifetime policies (messaging section 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

LIFETIME: Final = "lifetime-policy"


class DynamicNode:
    """A queue whose lifetime policy is one of the DELETE_ON descriptors."""

    def __init__(self, queue: Queue, policy: int) -> None:
        self.queue = queue
        self.policy = policy

    def leave(self) -> None:
        """Apply the policy when the link that created the node is closed."""
        queue = self.queue
        if queue.deleted:
            return
        if self.policy == descriptors.DELETE_ON_CLOSE or self._is_free():
            queue.vhost.remove_queue(queue)
        else:
            # From now on, the queue is deleted with its last consumer.
            queue.lifetime.delete_when_unused()
            queue.redefined()

    def _is_free(self) -> bool:
        queue = self.queue
        if queue.lifetime.users and self.policy in (
            descriptors.DELETE_ON_NO_LINKS,
            descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES,
        ):
            return False
        if self.policy in (descriptors.DELETE_ON_NO_MESSAGES, descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES):
            return not queue.ready_count and not queue.delayed_count and not queue.unacked and not queue.is_unindexed()
        return True


def policy_of(properties: Checked) -> int:
    """Return the requested lifetime policy; delete-on-close by default."""
    if isinstance(properties, dict):
        wanted = properties.get(LIFETIME)
        if (
            isinstance(wanted, Composite)
            and descriptors.DELETE_ON_CLOSE <= wanted.kind <= descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES
        ):
            return wanted.kind
    return descriptors.DELETE_ON_CLOSE

"""The limits of a queue, as publishers, transactions and dead letters see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.arguments import QueueSettings
    from leveret.broker.message import Entry, Message


class QueueLimits:
    """The limits of a queue that has none. A queue type with limits overrides the methods.

    max_length, max_bytes  -1 for none
    rejects_when_full      a full queue rejects messages instead of dropping the oldest ones
    overfull               the queue may exceed its limits, which its next `drain` checks
    droppable              there may be messages in memory that overflow drops first, by their content policy
    """

    def __init__(self) -> None:
        self.max_length = -1
        self.max_bytes = -1
        self.rejects_when_full = False
        self.overfull = False
        self.droppable = False

    def configure(self, settings: QueueSettings) -> None:
        """Change the limits."""

    # Publishes

    def reject_publish(self, message: Message, due: int = 0) -> bool:
        """Reject a publish if the queue is full and rejects publishes, and dead-letter it if the queue does that.

        Returns:
            Whether the publish was rejected.
        """
        return False

    def would_reject(self, message: Message, due: int = 0) -> bool:
        """Return whether the queue would now reject a message that becomes visible at `due`, 0 for at once."""
        return False

    def would_reject_size(self, size: int) -> bool:
        """Return whether the queue would now reject a message of `size` bytes that replaces no other one."""
        return False

    def always_accepts(self, message: Message, due: int) -> bool:
        """Return whether the queue accepts a message even if it is full."""
        return True

    def would_exceed(self, size: int, count: int = 1) -> bool:
        """Return whether `count` more messages with `size` bytes in total would exceed a limit."""
        return False

    # Entries

    def exceeds_deliveries(self, entry: Entry) -> bool:
        """Return whether one more failed delivery of an entry exceeds the delivery limit."""
        return False

    @property
    def is_set(self) -> bool:
        """Whether there is a length limit."""
        return False

    def note(self, entry: Entry) -> None:
        """Note an entry that is now in memory."""

    def note_droppable(self) -> None:
        """Note that a message with the rule DROP_FIRST was pushed."""

    # Overflow

    def is_exceeded(self) -> bool:
        """Return whether the queue exceeds its limits."""
        return False

    def is_overflowing(self) -> bool:
        """Return whether the next `drain` of the queue drops messages."""
        return False

    def enforce(self) -> None:
        """Drop messages until the queue is within its limits, unless it rejects publishes instead."""

    def drop_droppable(self) -> None:
        """Drop messages with the rule DROP_FIRST while there are more entries than such a queue may have."""


# Also those of a deleted queue.
NO_LIMITS: Final = QueueLimits()

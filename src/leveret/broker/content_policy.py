"""Content policies: a protocol's rules for messages of a format that need special treatment in queues.

A protocol registers one policy per format in `Broker.content_policies`. Messages of formats without a policy are for
all consumers, and overflow drops them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from leveret.broker.message import Message

# Rules for a message in a queue that exceeds its limits.
DROP_IN_ORDER: Final = 0
# Before all others, those of the lowest priority first.
DROP_FIRST: Final = 1
# Never: publishers are slowed down instead.
DROP_NEVER: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class ContentPolicy:
    """Policy for the messages of one format."""

    def audience(self, message: Message) -> int:
        """Return the group of consumers that the message is for; 0 for all consumers. See `Message.publisher`."""
        return 0

    def overflow_rule(self, message: Message) -> int:
        """Return DROP_IN_ORDER, DROP_FIRST or DROP_NEVER."""
        return DROP_IN_ORDER

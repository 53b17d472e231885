"""Content policies of 0-9: consumers receive contents of their class, and two classes have their own overflow rules.

The content class is in the first two bytes of the header.
"""

from __future__ import annotations

from leveret.broker.content_policy import DROP_FIRST, DROP_IN_ORDER, DROP_NEVER, ContentPolicy
from leveret.broker.message import FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, Message
from leveret.wire.amqp0.classes import FILE, STREAM


class BasicPolicy(ContentPolicy):
    """Contents of class basic."""

    def audience(self, message: Message) -> int:
        return message.header[1]


class ClassPolicy(BasicPolicy):
    """Contents of other classes: streams are the first to be dropped, files are never dropped."""

    def overflow_rule(self, message: Message) -> int:
        content_class = message.header[1]
        if content_class == STREAM:
            return DROP_FIRST
        return DROP_NEVER if content_class == FILE else DROP_IN_ORDER


def content_policies() -> dict[int, ContentPolicy]:
    """Return the policies by message format."""
    return {FORMAT_BASIC_AMQP09: BasicPolicy(), FORMAT_CLASS_AMQP09: ClassPolicy()}

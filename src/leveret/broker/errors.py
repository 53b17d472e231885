"""Errors of the broker. They name a condition; each protocol maps conditions to its own error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.message import Entry
    from leveret.broker.queues.queue import Queue

# Message to a client about any other exception.
INTERNAL_ERROR: Final = "internal error; see the broker's log"


class BrokerError(Exception):
    """Base of all broker errors. The message says what happened, what was expected and which setting changes it."""

    condition = "internal-error"

    def __init__(self, text: str, *, closes_connection: bool = False) -> None:
        """Create an error; `closes_connection` makes it an error of the connection rather than of the channel."""
        super().__init__(text)
        self.closes_connection = closes_connection


class NotFound(BrokerError):
    condition = "not-found"


class AccessRefused(BrokerError):
    condition = "access-refused"


class PreconditionFailed(BrokerError):
    condition = "precondition-failed"


class ResourceLocked(BrokerError):
    condition = "resource-locked"


class NotAllowed(BrokerError):
    condition = "not-allowed"


class SyntaxInvalid(BrokerError):
    condition = "syntax-error"


class CommandInvalid(BrokerError):
    condition = "command-invalid"


class ChannelError(BrokerError):
    condition = "channel-error"


class InvalidPath(BrokerError):
    condition = "invalid-path"


class NotImplementedByBroker(BrokerError):
    condition = "not-implemented"


class ResourceError(BrokerError):
    condition = "resource-error"


class ContentTooLarge(BrokerError):
    condition = "content-too-large"


class Undelivered(Exception):
    """Raised by `Consumer.deliver`, which has sent nothing: its client can never receive the entry. The text says why."""

    def __init__(self, entry: Entry, text: str) -> None:
        super().__init__(text)
        self.entry = entry


class NotIndexed(BrokerError):
    """The recovered entries of a queue are still being indexed. The operation has changed nothing; repeat it later."""

    condition = "resource-locked"

    def __init__(self, queue: Queue) -> None:
        super().__init__(f"{queue} is still indexing its messages from before the start of the broker: try again later")
        self.queue = queue


class StorageFailed(BrokerError):
    """The store has stopped; nothing in the log commit is confirmed."""

    condition = "internal-error"

"""Encoded publishes of any protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import Error
from leveret.client.properties import Properties

if TYPE_CHECKING:
    from leveret.client.engine.common.publisher import PublisherCore


class Outgoing(ABC):
    """An encoded publish.

    Attributes:
        flags: Mandatory and immediate, from `encode_flags`.
        body: Body of the message.
        waiter: Waiter for the confirm; None if no caller waits.
        publisher: Publisher whose window includes the publish.
        at_most_once: Do not publish it again after a lost connection.
    """

    __slots__ = ("at_most_once", "body", "flags", "publisher", "waiter")

    def __init__(self, flags: int, body: bytes) -> None:
        self.flags = flags
        self.body = body
        self.waiter: Waiter | None = None
        self.publisher: PublisherCore | None = None
        self.at_most_once = False

    def report_to(self, waiter: Waiter) -> None:
        """Have a waiter receive the confirm, None, or the failure, instead of a publisher."""
        self.waiter = waiter

    def settle(self, error: Error | None) -> None:
        """Report a confirm (None) or a failure."""
        waiter = self.waiter
        if waiter is not None:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        elif self.publisher is not None:
            publisher, self.publisher = self.publisher, None
            publisher.settled(self, error)

    @abstractmethod
    def describe(self) -> tuple[str, str, Properties | None, bytes]:
        """Return exchange, routing key, properties and body."""

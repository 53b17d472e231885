"""The destination of the exchange `leveret.control`: a queue that clients cannot see.

Requests are executed in order at the end of the turn in which they arrived.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from leveret.broker.exchanges.control import CONTROL
from leveret.broker.message import Entry, Message
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.hidden import HiddenQueue

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestHandler:
    """Executes requests."""

    @abstractmethod
    def handle(self, vhost: Vhost, message: Message) -> None:
        """Execute a request that was published in a vhost. Must not raise."""


class RequestQueue(HiddenQueue):
    """The request queue of one vhost. It is empty after each turn; without a handler, requests are dropped."""

    def __init__(self, vhost: Vhost) -> None:
        super().__init__(QueueDefinition(vhost, 0, CONTROL))
        self.arrived: deque[Message] = deque()

    def push(self, message: Message) -> bool:
        # Messages from an alternate exchange are dropped: their publisher addressed another one.
        if message.exchange == CONTROL:
            self.arrived.append(message)
            self.activate()
        return True

    def insert_new(self, entry: Entry) -> None:
        """Accept a request that was published in a transaction."""
        self.push(entry.message)

    def drain(self) -> None:
        handler = self.broker.request_handler
        arrived = self.arrived
        while arrived:
            message = arrived.popleft()
            if handler is not None:
                handler.handle(self.vhost, message)

"""The exchange `leveret.control`: every message published to it is a request to the broker."""

from __future__ import annotations

from typing import ClassVar, Final

from leveret.broker.destination import Destination
from leveret.broker.errors import AccessRefused
from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.values import FieldTable

# Prefix of exchange names that are reserved for the broker.
RESERVED: Final = "leveret."
CONTROL: Final = "leveret.control"


class ControlExchange(Exchange):
    """The control exchange; `requests` is the queue of requests.

    It has no bindings: with them, a request published to another exchange would act on behalf of an unaware publisher.
    """

    type: ClassVar[str] = "direct"

    def __init__(self, requests: Destination) -> None:
        super().__init__(CONTROL, True)
        self.needs_key = False
        self.requests = requests

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        return [self.requests]


def check_not_control(name: str) -> None:
    """Raise AccessRefused for the control exchange, which cannot be bound or deleted."""
    if name == CONTROL:
        raise AccessRefused(f"exchange '{CONTROL}' is reserved for requests to the broker: it cannot be bound or deleted")

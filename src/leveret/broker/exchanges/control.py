"""The exchange `leveret.control`: every message published to it is a request to the broker."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from leveret.broker.errors import AccessRefused
from leveret.broker.exchanges.base import Effort, Exchange

# Names of exchanges that begin so are the broker's own.
RESERVED: Final = "leveret."
CONTROL: Final = "leveret.control"


class ControlExchange(Exchange):
    """The control exchange; `requests` is the queue of requests.

    It has no bindings: a request through another exchange would act for a publisher that does not know about it.
    """

    type: ClassVar[str] = "direct"

    def __init__(self, requests: Any) -> None:
        super().__init__(CONTROL, True)
        self.needs_key = False
        self.requests = requests

    def match(self, routing_key: str, headers: dict[str, Any], hashed: str, effort: Effort) -> list[Any]:
        return [self.requests]


def check_not_control(name: str) -> None:
    """Raise AccessRefused for the exchange that cannot be bound or deleted."""
    if name == CONTROL:
        raise AccessRefused(f"exchange '{CONTROL}' takes requests to the broker: it cannot be bound or deleted")

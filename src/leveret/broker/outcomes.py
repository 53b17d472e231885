"""Outcome names used in events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer

ACCEPTED: Final = "accepted"
RELEASED: Final = "released"
REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery_limit"
# Protocol of messages that leave a queue without a consumer.
GET_PROTOCOL: Final = ""


def protocol_of(holder: Consumer | None) -> str:
    """Return the protocol of the consumer that has acquired an entry, if known."""
    return GET_PROTOCOL if holder is None else holder.protocol()

"""Outcome names used in events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer

ACCEPTED: Final = "accepted"
RELEASED: Final = "released"
REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery_limit"
# Who takes messages without consuming is not known here.
GET_PROTOCOL: Final = ""


def protocol_of(holder: Consumer | None) -> str:
    """The protocol of who holds an entry, as far as that is known."""
    return GET_PROTOCOL if holder is None else holder.protocol()

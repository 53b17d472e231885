"""The exchange types by name."""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import CommandInvalid
from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.deduplicating import DeduplicationExchange
from leveret.broker.exchanges.delayed import DelayedExchange
from leveret.broker.exchanges.recent_history import RecentHistoryExchange
from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.broker.values import FieldTable

TYPES: Final[dict[str, type[Exchange]]] = {
    **ROUTING_TYPES,
    DeduplicationExchange.type: DeduplicationExchange,
    "x-delayed-message": DelayedExchange,
    "x-recent-history": RecentHistoryExchange,
}


def exchange_class(type_name: str) -> type[Exchange]:
    """Return the class of an exchange type.

    Raises CommandInvalid if it is unknown (0-9-1 exchange.declare.type.support).
    """
    found = TYPES.get(type_name)
    if found is None:
        raise CommandInvalid(f"unknown exchange type '{type_name}', expected one of {', '.join(TYPES)}")
    return found


def make_exchange(
    type_name: str,
    name: str,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: FieldTable | None = None,
) -> Exchange:
    """Create an exchange without bindings.

    Raises CommandInvalid if the type is unknown, and PreconditionFailed if it does not support the arguments.
    """
    return exchange_class(type_name)(name, durable, auto_delete, internal, arguments)

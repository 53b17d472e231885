"""The exchange types by name. A new type is one line here."""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import CommandInvalid
from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.consistent_hash import ConsistentHashExchange
from leveret.broker.exchanges.direct import DirectExchange
from leveret.broker.exchanges.fanout import FanoutExchange
from leveret.broker.exchanges.headers import HeadersExchange
from leveret.broker.exchanges.modulus_hash import ModulusHashExchange
from leveret.broker.exchanges.random_choice import RandomExchange
from leveret.broker.exchanges.topic import TopicExchange
from leveret.broker.values import FieldTable

TYPES: Final[dict[str, type[Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
    "x-consistent-hash": ConsistentHashExchange,
    "x-modulus-hash": ModulusHashExchange,
    "x-random": RandomExchange,
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
    """Create an exchange without bindings. Raises CommandInvalid if the type is unknown."""
    return exchange_class(type_name)(name, durable, auto_delete, internal, arguments)

"""The exchange types that choose the destinations of messages, by name. A new type is one line here."""

from __future__ import annotations

from typing import Final

from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.consistent_hash import ConsistentHashExchange
from leveret.broker.exchanges.direct import DirectExchange
from leveret.broker.exchanges.fanout import FanoutExchange
from leveret.broker.exchanges.headers import HeadersExchange
from leveret.broker.exchanges.local_random import LocalRandomExchange
from leveret.broker.exchanges.modulus_hash import ModulusHashExchange
from leveret.broker.exchanges.random_choice import RandomExchange
from leveret.broker.exchanges.topic import TopicExchange

ROUTING_TYPES: Final[dict[str, type[Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
    "x-consistent-hash": ConsistentHashExchange,
    "x-modulus-hash": ModulusHashExchange,
    "x-random": RandomExchange,
    "x-local-random": LocalRandomExchange,
}

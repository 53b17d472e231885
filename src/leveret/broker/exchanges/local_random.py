"""The local random exchange, `x-local-random` of RabbitMQ: one destination of this node, chosen at random.

All destinations of an exchange are in the same node as the exchange.
"""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.exchanges.random_choice import RandomExchange


class LocalRandomExchange(RandomExchange):
    type: ClassVar[str] = "x-local-random"

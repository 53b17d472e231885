"""The random exchange, `x-random` of RabbitMQ's plugin: each message goes to one destination, chosen at random."""

from __future__ import annotations

from random import getrandbits
from typing import ClassVar, Final

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.one_of import OneOfExchange
from leveret.broker.values import FieldTable

# Bits of a random number: far more than a number of destinations has, so that all are chosen equally often.
_BITS: Final = 48


class RandomExchange(OneOfExchange):
    type: ClassVar[str] = "x-random"

    def set_up(self) -> None:
        super().set_up()
        self.needs_key = False

    def varies(self) -> bool:
        return True

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        return self.choose(getrandbits(_BITS), effort)

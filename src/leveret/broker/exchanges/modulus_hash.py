"""The modulus-hash exchange, `x-modulus-hash` of RabbitMQ's sharding plugin: each message goes to one destination.

The hash of the routing key, modulo the number of destinations, selects one of them in the order of their names, so that a
key has the same destination after a restart, as long as none is added or removed.
"""

from __future__ import annotations

from typing import ClassVar
from zlib import crc32

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.one_of import OneOfExchange
from leveret.broker.values import FieldTable


class ModulusHashExchange(OneOfExchange):
    type: ClassVar[str] = "x-modulus-hash"
    partitions: ClassVar[bool] = True

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        return self.choose(crc32(routing_key.encode("utf-8", "surrogateescape")), effort)

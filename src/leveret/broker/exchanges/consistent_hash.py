"""The consistent-hash exchange, RabbitMQ's `x-consistent-hash`: each message goes to exactly one destination.

The binding key is the weight, a positive whole number; the weights of several bindings to a destination add up. The
hashed value is the routing key, or a header (`hash-header`) or property (`hash-property`) set by the arguments of the
exchange.

The exchange uses rendezvous hashing: every destination draws a number from the hash of its name and the value, scaled
by its weight, and the highest wins. The draw of a destination does not depend on the others, so a new binding only
attracts its own share, nothing moves between the others, and the result is the same after a restart and on another
machine.
"""

from __future__ import annotations

from hashlib import blake2b
from math import log
from typing import ClassVar, Final

from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Binding, Effort, Exchange, text_argument
from leveret.broker.values import FieldTable

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
_DIGEST: Final = 8
_SCALE: Final = float(1 << 64)
# Steps per draw, which takes about 1 µs.
DRAW_STEPS: Final = 10


class Candidate:
    """A destination with the sum of its weights, and the key of its draws."""

    __slots__ = ("key", "weight")

    def __init__(self, destination: Destination) -> None:
        # A queue and an exchange may have the same name.
        identity = f"{destination.kind}:{destination.name}".encode("utf-8", "surrogateescape")
        self.key = blake2b(identity, digest_size=16).digest()
        self.weight = 0


def _weight(routing_key: str) -> int:
    # int() also accepts signs, blanks, underscores and digits of other scripts. The length is limited to nine digits.
    return int(routing_key) if routing_key.isascii() and routing_key.isdigit() and len(routing_key) <= 9 else 0


class ConsistentHashExchange(Exchange):
    type: ClassVar[str] = "x-consistent-hash"
    partitions: ClassVar[bool] = True

    def set_up(self) -> None:
        self.hash_header = text_argument(self.arguments, HASH_HEADER) or ""
        self.needs_headers = bool(self.hash_header)
        property_name = text_argument(self.arguments, HASH_PROPERTY) or ""
        self.needs_property = property_name.replace("_", "-")
        self.needs_key = not (self.needs_headers or self.needs_property)
        self.candidates: dict[Destination, Candidate] = {}

    def check_binding(self, routing_key: str, arguments: FieldTable) -> None:
        if _weight(routing_key) < 1:
            raise PreconditionFailed(
                f"invalid binding key '{routing_key}' for exchange '{self.name}' ({self.type}): "
                "expected the weight of the binding, a whole number from 1 to 999999999"
            )

    def added(self, binding: Binding) -> None:
        candidate = self.candidates.get(binding.destination)
        if candidate is None:
            candidate = self.candidates[binding.destination] = Candidate(binding.destination)
        candidate.weight += _weight(binding.routing_key)

    def removed(self, binding: Binding) -> None:
        candidate = self.candidates[binding.destination]
        candidate.weight -= _weight(binding.routing_key)
        if candidate.weight == 0:
            del self.candidates[binding.destination]

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        if self.hash_header:
            value = str(headers.get(self.hash_header, ""))
        elif self.needs_property:
            value = hashed
        else:
            value = routing_key
        data = value.encode("utf-8", "surrogateescape")
        effort.spend(DRAW_STEPS * len(self.candidates) + (len(data) * len(self.candidates) >> 5))
        best: Destination | None = None
        best_score = 0.0
        for destination, candidate in self.candidates.items():
            if destination.deleted:
                continue  # its bindings are still being removed
            draw = int.from_bytes(blake2b(data, digest_size=_DIGEST, key=candidate.key).digest(), "big")
            # Smallest wins: an exponential variable whose rate is the weight.
            score = -log((draw + 0.5) / _SCALE) / candidate.weight
            if best is None or score < best_score:
                best = destination
                best_score = score
        return [best] if best is not None else []

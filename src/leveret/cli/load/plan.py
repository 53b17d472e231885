"""The load of a benchmark run, and its distribution over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.wire.amqp0.values import FieldTable

# A hashing exchange spreads messages by their routing keys.
_HASH_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Routing:
    """The bindings of the queues to an exchange type, and the routes of messages to them.

    Attributes:
        binding: Returns the binding key and the arguments of a queue, from its name and number.
        route: Returns the routing key and the headers of messages for a queue; None if messages have no target queue.
        routes: The routing keys and headers of messages without a target queue.
        copies: Whether every queue gets a copy of each message.
    """

    binding: Callable[[str, int], tuple[str, FieldTable]]
    route: Callable[[str, int], tuple[str, FieldTable | None]] | None = None
    routes: tuple[tuple[str, FieldTable | None], ...] = ()
    copies: bool = False


_BY_NAME: Final = _Routing(lambda name, queue: (name, {}), lambda name, queue: (name, None))
_ROUTINGS: Final = {
    "default": _BY_NAME,
    "direct": _BY_NAME,
    "fanout": _Routing(lambda name, queue: ("", {}), routes=(("", None),), copies=True),
    "topic": _Routing(lambda name, queue: (f"bench.{queue}.#", {}), lambda name, queue: (f"bench.{queue}.message", None)),
    "headers": _Routing(
        lambda name, queue: ("", {"x-match": "all", "queue": queue}), lambda name, queue: ("", {"queue": queue})
    ),
    "x-consistent-hash": _Routing(
        lambda name, queue: ("1", {}), routes=tuple((str(key), None) for key in range(_HASH_KEYS))
    ),
    "x-modulus-hash": _Routing(lambda name, queue: ("", {}), routes=tuple((str(key), None) for key in range(_HASH_KEYS))),
    "x-random": _Routing(lambda name, queue: ("", {}), routes=(("", None),)),
    "x-local-random": _Routing(lambda name, queue: ("", {}), routes=(("", None),)),
}
# The default exchange, and the exchange types that route messages.
EXCHANGES: Final = tuple(_ROUTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The load of a benchmark run.

    Attributes:
        urls: The brokers, tried in order.
        name: The name prefix of queues and exchanges.
        size: The bytes per body.
        window: The maximum number of unconfirmed messages per publisher.
        ack_every: The number of messages per acknowledgement.
        rate: The number of messages per second, over all publishers; None is unlimited.
        seconds: The duration; None is unlimited.
        messages: The number of messages, over all publishers; None is unlimited.
        exchange: One of `EXCHANGES`.

    Raises:
        ValueError: The exchange type is unknown.
    """

    urls: tuple[str, ...]
    name: str
    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    size: int = 256
    persistent: bool = False
    window: int = 200
    prefetch: int = 500
    ack_every: int = 50
    no_ack: bool = False
    confirms: bool = True
    rate: float | None = None
    seconds: float | None = None
    messages: int | None = None
    exchange: str = "default"

    def __post_init__(self) -> None:
        if self.exchange not in _ROUTINGS:
            raise ValueError(f"exchange type {self.exchange!r} is unknown; expected one of {', '.join(EXCHANGES)}")

    @property
    def exchange_name(self) -> str:
        return "" if self.exchange == "default" else self.name

    def queue_name(self, queue: int) -> str:
        return f"{self.name}.{queue}"

    def binding(self, queue: int) -> tuple[str, FieldTable]:
        """Return the binding key and the binding arguments of a queue."""
        return _ROUTINGS[self.exchange].binding(self.queue_name(queue), queue)

    def routes(self, publisher: int) -> list[tuple[str, FieldTable | None]]:
        """Return the routing keys and headers that a publisher cycles through."""
        routing = _ROUTINGS[self.exchange]
        if routing.route is None:
            return list(routing.routes)
        queues = self._share(self.queues, publisher, self.publishers)
        return [routing.route(self.queue_name(queue), queue) for queue in queues]

    def consumed_by(self, consumer: int) -> list[str]:
        """Return the names of the queues that a consumer consumes from."""
        return [self.queue_name(queue) for queue in self._share(self.queues, consumer, self.consumers)]

    @staticmethod
    def _share(queues: int, number: int, of: int) -> list[int]:
        """Spread queues over clients: a client gets several if there are more queues; otherwise clients share them."""
        return list(range(number, queues, of)) or [number % queues]

    def quota(self, publisher: int) -> int | None:
        """Return the number of messages that a publisher sends; None is unlimited."""
        if self.messages is None:
            return None
        return self.messages // self.publishers + (publisher < self.messages % self.publishers)

    @property
    def copies(self) -> int:
        """The number of queues that each message is routed to."""
        return self.queues if _ROUTINGS[self.exchange].copies else 1


@dataclass(frozen=True, slots=True)
class Share:
    """The publishers and consumers of one process, by their numbers."""

    publishers: list[int]
    consumers: list[int]


def shares(plan: Plan, processes: int) -> list[Share]:
    """Spread the load evenly over processes: publishers from the first process up, consumers from the last down."""
    found = []
    for process in range(processes):
        publishers = range(process, plan.publishers, processes)
        consumers = range(processes - 1 - process, plan.consumers, processes)
        if publishers or consumers:
            found.append(Share(list(publishers), list(consumers)))
    return found

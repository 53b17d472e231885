"""What load to make, and who makes which part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

EXCHANGES: Final = ("default", "direct", "fanout", "topic", "headers", "x-consistent-hash")
# A consistent-hash exchange spreads messages by their routing keys.
_HASH_KEYS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The load. Lists are tuples, so that it can be compared; JSON makes lists of them.

    name       of everything that is made on the broker begins with it
    size       octets of a body
    window     publishes of one publisher that are not confirmed
    ack_every  one acknowledgement for so many messages
    rate       messages a second of all publishers together, None for as many as the broker takes
    seconds    of measuring, None without end
    messages   of all publishers together, None without end
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

    @property
    def exchange_name(self) -> str:
        return "" if self.exchange == "default" else self.name

    def queue_name(self, queue: int) -> str:
        return f"{self.name}.{queue}"

    def binding(self, queue: int) -> tuple[str, dict[str, Any]]:
        """Binding key and arguments of a queue."""
        if self.exchange == "topic":
            return f"bench.{queue}.#", {}
        if self.exchange == "headers":
            return "", {"x-match": "all", "queue": queue}
        if self.exchange == "x-consistent-hash":
            return "1", {}
        return ("", {}) if self.exchange == "fanout" else (self.queue_name(queue), {})

    def routes(self, publisher: int) -> list[tuple[str, dict[str, Any] | None]]:
        """Routing key and headers of a publisher's messages, in turn."""
        if self.exchange == "fanout":
            return [("", None)]
        if self.exchange == "x-consistent-hash":
            return [(str(key), None) for key in range(_HASH_KEYS)]
        routes: list[tuple[str, dict[str, Any] | None]] = []
        for queue in self._share(self.queues, publisher, self.publishers):
            if self.exchange == "topic":
                routes.append((f"bench.{queue}.message", None))
            elif self.exchange == "headers":
                routes.append(("", {"queue": queue}))
            else:
                routes.append((self.queue_name(queue), None))
        return routes

    def consumed_by(self, consumer: int) -> list[str]:
        """The names of the queues of a consumer."""
        return [self.queue_name(queue) for queue in self._share(self.queues, consumer, self.consumers)]

    @staticmethod
    def _share(queues: int, number: int, of: int) -> list[int]:
        """Where there are more queues than those who use them, each has several; otherwise several have one."""
        return list(range(number, queues, of)) or [number % queues]

    def quota(self, publisher: int) -> int | None:
        """How many messages a publisher publishes."""
        if self.messages is None:
            return None
        return self.messages // self.publishers + (publisher < self.messages % self.publishers)

    @property
    def copies(self) -> int:
        """How many queues get each message."""
        return self.queues if self.exchange == "fanout" else 1


@dataclass(frozen=True, slots=True)
class Share:
    """The publishers and consumers of one process, by their numbers."""

    publishers: list[int]
    consumers: list[int]


def shares(plan: Plan, processes: int) -> list[Share]:
    """The load of each process. Publishers go to the first ones and consumers to the last, evenly."""
    found = []
    for process in range(processes):
        publishers = range(process, plan.publishers, processes)
        consumers = range(processes - 1 - process, plan.consumers, processes)
        if publishers or consumers:
            found.append(Share(list(publishers), list(consumers)))
    return found

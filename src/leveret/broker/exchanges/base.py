"""Base of the exchange types: a set of bindings and a method that matches a message against them.

An exchange is independent of queues: the destination of a binding is an opaque object that `match` returns. It has a
`name`, and `deleted` is set while its bindings are being removed. The base class stores the bindings; a type adds an
index that makes `match` fast.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from leveret.broker.arguments import EXCHANGE_ARGUMENTS, parse_arguments
from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.deduplication_settings import exchange_deduplication
from leveret.broker.queues.exchange_keys import ExchangeKeys
from leveret.broker.table import Table
from leveret.broker.values import FieldTable, Frozen, freeze

if TYPE_CHECKING:
    from leveret.broker.policies import Policy
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

DEFAULT_ROUTING_STEPS: Final = 100_000


class Binding:
    """One binding; its identity is (destination, routing key, arguments).

    Attributes:
        encoded: The arguments as a client of RabbitMQ's dialect has encoded them, if their types matter to management.
    """

    __slots__ = ("arguments", "destination", "encoded", "routing_key")

    def __init__(self, destination: Destination, routing_key: str, arguments: FieldTable, encoded: bytes) -> None:
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments
        self.encoded = encoded


def text_argument(arguments: FieldTable, name: str) -> str | None:
    """Return the value of a string argument, which clients of some protocols send as bytes; None if it is absent."""
    value = arguments.get(name)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None


class Effort:
    """The work of routing one message, in steps of about 0.1 µs: a comparison, a node of a trie, or a destination.

    Clients create bindings and exchanges, so the cost of routing one message needs a limit.
    """

    __slots__ = ("limit", "steps")

    def __init__(self, limit: int = DEFAULT_ROUTING_STEPS) -> None:
        self.limit = limit
        self.steps = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises PreconditionFailed above the limit."""
        self.steps += steps
        if self.steps > self.limit:
            raise PreconditionFailed(
                f"routing the message takes more than {self.limit} steps (comparisons with bindings,"
                " destinations); the setting is limits.routing_steps"
            )


class Exchange(Destination):
    """Base of the exchange types; a type is one file that subclasses this and one line in the registry.

    type            the name on the wire
    needs_headers   whether `match` uses headers (routes of such an exchange cannot be cached by address)
    needs_key       whether `match` uses the routing key; otherwise one match serves all keys of a message
    needs_property  the content property ("message-id", "correlation-id", "timestamp") whose value `match` takes as its
                    third argument, "" for none (routes cannot be cached by address otherwise)
    match_all_key   the routing key of a binding that matches as many messages as the type allows
    partitions      the type spreads messages over its destinations, which may be the partitions of a super stream
    has_topics      topic permissions apply to the routing keys
    delays          the destinations get messages after the delay in their headers

    A subclass implements `match` and, if it has state of its own, `set_up`; if that is an index, `added` and `removed`; if
    it keeps messages, `attach`, `detach` and `welcome`.
    """

    kind: ClassVar[Literal["queue", "exchange"]] = "exchange"
    type: ClassVar[str] = ""
    partitions: ClassVar[bool] = False
    delays: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> None:
        super().__init__(name, 0, durable)
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: FieldTable = arguments or {}
        self.alternate = text_argument(self.arguments, "alternate-exchange")
        # Its keys if it drops duplicates.
        self.keys: ExchangeKeys | None = None
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.needs_key = True
        self.needs_headers = False
        self.needs_property = ""
        self.match_all_key = ""
        self.has_topics = False
        # By destination, then by the rest of the identity: removing a destination touches only its own bindings.
        self.by_destination: dict[Destination, Table[tuple[str, Frozen], Binding]] = {}
        # The destinations that are exchanges.
        self.targets: dict[Exchange, None] = {}
        # Statistics: messages published to the exchange by clients, and copies of these that were routed to queues.
        self.publish_in = 0
        self.publish_out = 0
        self.set_up()

    def set_up(self) -> None:
        """Create the state of the type, after that of all exchanges.

        Raises:
            PreconditionFailed: The type does not support the arguments.
        """

    def attach(self, vhost: Vhost) -> None:
        """Note that the exchange, which has its id, is in a vhost now.

        Raises:
            PreconditionFailed: The arguments contradict each other.
        """
        settings = exchange_deduplication(self.type, parse_arguments(EXCHANGE_ARGUMENTS, self.arguments, False)[0])
        if settings is not None:
            self.keys = ExchangeKeys(vhost, self, settings)

    def deduplication_figures(self) -> tuple[int, int]:
        """Return the number of keys of messages, and of messages that it has dropped as duplicates."""
        return (0, 0) if self.keys is None else self.keys.keys.figures()

    def detach(self) -> None:
        """Release the state of the type: the exchange is deleted."""
        if self.keys is not None:
            self.keys.delete()

    def welcome(self, destination: Destination) -> None:
        """Act on the first binding to a destination, which is in effect. A start does not call it."""

    def count(self, published: int, copies: int) -> None:
        """Count published messages and their copies in queues."""
        self.publish_in += published
        self.publish_out += copies

    # As a destination

    def reach(self, queues: dict[Queue, None], exchanges: list[Exchange]) -> None:
        exchanges.append(self)

    def bound_to(self, source: Exchange) -> None:
        source.targets[self] = None

    def unbound_from(self, source: Exchange) -> None:
        source.targets.pop(self, None)

    def varies(self) -> bool:
        """Return whether messages with one address may have different destinations, so that no route can be cached."""
        return self.needs_headers or bool(self.needs_property)

    # Bindings

    def check_binding(self, routing_key: str, arguments: FieldTable) -> None:
        """Raise PreconditionFailed if this type does not support such a binding (consistent-hash weights, x-match)."""

    def bind(self, destination: Destination, routing_key: str, arguments: FieldTable, encoded: bytes = b"") -> bool:
        """Add a binding. Returns False if an equal one exists (0-9-1 queue.bind.duplicates)."""
        identity = (routing_key, freeze(arguments))
        own = self.by_destination.get(destination)
        if own is None:
            own = self.by_destination[destination] = Table()
            destination.bound_to(self)
        if own.get(identity) is not None:
            return False
        binding = Binding(destination, routing_key, arguments, encoded)
        own.put(identity, binding)
        self.added(binding)
        return True

    def has(self, destination: Destination, routing_key: str, arguments: FieldTable) -> bool:
        """Return whether such a binding exists."""
        return self.find(destination, routing_key, arguments) is not None

    def find(self, destination: Destination, routing_key: str, arguments: FieldTable) -> Binding | None:
        """Return a binding, None if it does not exist."""
        own = self.by_destination.get(destination)
        return None if own is None else own.get((routing_key, freeze(arguments)))

    def bindings_to(self, destination: Destination) -> list[Binding]:
        """Return the bindings to a destination, in no particular order."""
        own = self.by_destination.get(destination)
        return [] if own is None else own.values()

    def unbind(self, destination: Destination, routing_key: str, arguments: FieldTable) -> bool:
        """Remove a binding. Returns False if it does not exist."""
        own = self.by_destination.get(destination)
        if own is None:
            return False
        binding = own.pop((routing_key, freeze(arguments)))
        if binding is None:
            return False
        if not len(own):
            del self.by_destination[destination]
            destination.unbound_from(self)
        self.removed(binding)
        return True

    def unbind_destination(self, destination: Destination) -> Table[tuple[str, Frozen], Binding]:
        """Remove and return all bindings to a destination. The caller passes each to `removed`."""
        destination.unbound_from(self)
        own = self.by_destination.pop(destination, None)
        return Table() if own is None else own

    def bindings(self) -> list[Binding]:
        """Return all bindings, in no particular order."""
        return [binding for own in self.by_destination.values() for binding in own.values()]

    def is_bound(self) -> bool:
        """Return whether there is any binding, except to deleted destinations (0-9-1 exchange.delete.if-unused)."""
        return any(not destination.deleted for destination in self.by_destination)

    def added(self, binding: Binding) -> None:
        """Add a new binding to the index of the type."""

    def removed(self, binding: Binding) -> None:
        """Remove a binding from the index of the type."""

    @abstractmethod
    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        """Return the destinations of a message, each once.

        `headers` is empty unless `needs_headers`; `hashed` is the text of the property named by `needs_property`, "" if
        the message does not have it. Raises PreconditionFailed if the limit of `effort` is exceeded.
        """

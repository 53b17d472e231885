"""The topology declared over a connection, to restore after a lost connection."""

from __future__ import annotations

from leveret.wire.amqp0.values import Arguments

# Key of a binding: whether it binds a queue, destination, source, routing key, and the repr of the arguments.
BindingKey = tuple[bool, str, str, str, str]


class DeclaredQueue:
    """A declared queue. The `name` of a server-named queue changes when it is declared again."""

    __slots__ = ("arguments", "name", "server_named")

    def __init__(self, name: str, server_named: bool, arguments: Arguments) -> None:
        self.name = name
        self.server_named = server_named
        self.arguments = arguments


class Binding:
    """A binding. `arguments` are those of `queue.bind` or `exchange.bind`."""

    __slots__ = ("arguments", "to_queue")

    def __init__(self, to_queue: bool, arguments: Arguments) -> None:
        self.to_queue = to_queue
        self.arguments = arguments

    @property
    def method(self) -> str:
        """Method that creates the binding."""
        return "queue.bind" if self.to_queue else "exchange.bind"

    @property
    def destination(self) -> str:
        """Bound queue or exchange."""
        name: str = self.arguments["queue" if self.to_queue else "destination"]
        return name

    @property
    def source(self) -> str:
        """Exchange that the destination is bound to."""
        name: str = self.arguments["exchange" if self.to_queue else "source"]
        return name


class Topology:
    """Declared exchanges, queues and bindings, in the order of declaration.

    Attributes:
        exchanges: Arguments of `exchange.declare`, by name.
        queues: Declared queues, by name.
        bindings: Bindings, by their key.
    """

    def __init__(self) -> None:
        self.exchanges: dict[str, Arguments] = {}
        self.queues: dict[str, DeclaredQueue] = {}
        self.bindings: dict[BindingKey, Binding] = {}

    def add_exchange(self, arguments: Arguments) -> None:
        """Record an exchange."""
        self.exchanges[arguments["exchange"]] = arguments

    def add_queue(self, name: str, server_named: bool, arguments: Arguments) -> DeclaredQueue:
        """Record a queue and return it. A repeated declaration returns the same object."""
        known = self.queues.get(name)
        if known is None:
            known = self.queues[name] = DeclaredQueue(name, server_named, arguments)
        else:
            known.arguments = arguments
        return known

    def bind(self, to_queue: bool, arguments: Arguments) -> None:
        """Record a binding."""
        self.bindings[_key(to_queue, arguments)] = Binding(to_queue, arguments)

    def unbind(self, to_queue: bool, arguments: Arguments) -> None:
        """Remove a binding."""
        self.bindings.pop(_key(to_queue, arguments), None)

    def remove_exchange(self, name: str) -> None:
        """Remove an exchange and its bindings."""
        self.exchanges.pop(name, None)
        self.bindings = {
            key: binding
            for key, binding in self.bindings.items()
            if binding.source != name and (binding.to_queue or binding.destination != name)
        }

    def remove_queue(self, name: str) -> None:
        """Remove a queue and its bindings."""
        self.queues.pop(name, None)
        self.bindings = {
            key: binding for key, binding in self.bindings.items() if not (binding.to_queue and binding.destination == name)
        }

    def rename_queue(self, queue: DeclaredQueue, name: str) -> None:
        """Rename a server-named queue, and its bindings with it."""
        before = queue.name
        self.queues = {(name if key == before else key): value for key, value in self.queues.items()}
        queue.name = name
        renamed = {}
        for key, binding in self.bindings.items():
            if binding.to_queue and binding.destination == before:
                binding.arguments["queue"] = name
                key = _key(True, binding.arguments)
            renamed[key] = binding
        self.bindings = renamed


def _key(to_queue: bool, arguments: Arguments) -> BindingKey:
    destination, source = ("queue", "exchange") if to_queue else ("destination", "source")
    return (to_queue, arguments[destination], arguments[source], arguments["routing_key"], repr(arguments["arguments"]))

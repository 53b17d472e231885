"""What was declared over a connection and is to be there again after it was lost."""

from __future__ import annotations

from typing import Any

# A binding: of a queue (True) or an exchange, destination, source, routing key, and its arguments by their text.
BindingKey = tuple[bool, str, str, str, str]


class DeclaredQueue:
    """A queue as it was declared. `name` changes when a server-named queue is declared anew."""

    __slots__ = ("arguments", "name", "server_named")

    def __init__(self, name: str, server_named: bool, arguments: dict[str, Any]) -> None:
        self.name = name
        self.server_named = server_named
        self.arguments = arguments


class Binding:
    """`arguments` are those of `queue.bind` or `exchange.bind`."""

    __slots__ = ("arguments", "to_queue")

    def __init__(self, to_queue: bool, arguments: dict[str, Any]) -> None:
        self.to_queue = to_queue
        self.arguments = arguments

    @property
    def method(self) -> str:
        return "queue.bind" if self.to_queue else "exchange.bind"

    @property
    def destination(self) -> str:
        name: str = self.arguments["queue" if self.to_queue else "destination"]
        return name

    @property
    def source(self) -> str:
        name: str = self.arguments["exchange" if self.to_queue else "source"]
        return name


class Topology:
    """Exchanges (by name, the arguments of their `exchange.declare`), queues and bindings, in the order of declaration."""

    def __init__(self) -> None:
        self.exchanges: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, DeclaredQueue] = {}
        self.bindings: dict[BindingKey, Binding] = {}

    def add_exchange(self, arguments: dict[str, Any]) -> None:
        self.exchanges[arguments["exchange"]] = arguments

    def add_queue(self, name: str, server_named: bool, arguments: dict[str, Any]) -> DeclaredQueue:
        """The queue as it is known from now on; declared again it stays the same object."""
        known = self.queues.get(name)
        if known is None:
            known = self.queues[name] = DeclaredQueue(name, server_named, arguments)
        else:
            known.arguments = arguments
        return known

    def bind(self, to_queue: bool, arguments: dict[str, Any]) -> None:
        self.bindings[_key(to_queue, arguments)] = Binding(to_queue, arguments)

    def unbind(self, to_queue: bool, arguments: dict[str, Any]) -> None:
        self.bindings.pop(_key(to_queue, arguments), None)

    def remove_exchange(self, name: str) -> None:
        self.exchanges.pop(name, None)
        self.bindings = {key: binding for key, binding in self.bindings.items()
                         if binding.source != name and (binding.to_queue or binding.destination != name)}

    def remove_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self.bindings = {key: binding for key, binding in self.bindings.items()
                         if not (binding.to_queue and binding.destination == name)}

    def rename_queue(self, queue: DeclaredQueue, name: str) -> None:
        """A server-named queue has a new name: its bindings follow."""
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


def _key(to_queue: bool, arguments: dict[str, Any]) -> BindingKey:
    destination, source = ("queue", "exchange") if to_queue else ("destination", "source")
    return (to_queue, arguments[destination], arguments[source], arguments["routing_key"],
            repr(arguments["arguments"]))

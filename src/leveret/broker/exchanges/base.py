"""What all exchange types have in common: a set of bindings and a way to match a message against them.

An exchange knows nothing of queues: a binding's destination is an opaque object that `match` returns.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol


class Destination(Protocol):
    """A queue or an exchange."""

    name: str


class Binding:
    """One binding; its identity is (destination, routing key, arguments)."""

    __slots__ = ("arguments", "destination", "routing_key")

    def __init__(self, destination: Any, routing_key: str, arguments: dict[str, Any]) -> None:
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments


class Exchange:
    """Base of the exchange types; a type is one file that subclasses this and one line in the registry.

    type           its name on the wire
    needs_headers  whether `match` looks at headers (routes of such an exchange cannot be cached by address)
    depends_on_message  whether two messages with the same address may be routed differently for another reason
    """

    type: ClassVar[str] = ""
    needs_headers: ClassVar[bool] = False
    depends_on_message: ClassVar[bool] = False

    def __init__(self, name: str, durable: bool = False, auto_delete: bool = False, internal: bool = False,
                 arguments: dict[str, Any] | None = None) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: dict[str, Any] = arguments or {}
        self.alternate: str | None = self.arguments.get("alternate-exchange")

    def check_binding(self, routing_key: str, arguments: dict[str, Any]) -> None:
        """Raise PreconditionFailed where this type cannot take such a binding (consistent-hash weights, x-match)."""

    def bind(self, destination: Any, routing_key: str, arguments: dict[str, Any]) -> bool:
        """Add a binding; False where an equal one exists (0-9-1 queue.bind.duplicates)."""
        raise NotImplementedError

    def unbind(self, destination: Any, routing_key: str, arguments: dict[str, Any]) -> bool:
        """Remove a binding; False where there is none."""
        raise NotImplementedError

    def unbind_destination(self, destination: Any) -> list[Binding]:
        """Remove and return every binding to a destination that goes away."""
        raise NotImplementedError

    def bindings(self) -> list[Binding]:
        """All bindings, in no particular order."""
        raise NotImplementedError

    def match(self, routing_key: str, headers: dict[str, Any], message_id: str) -> list[Any]:
        """The destinations of a message, each once. `headers` is empty unless `needs_headers`."""
        raise NotImplementedError

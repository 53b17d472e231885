"""Bindings: list, add, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field

from leveret.broker.errors import NotFound
from leveret.broker.exchanges.base import Binding, Exchange, freeze
from leveret.broker.queues.queue import Queue
from leveret.broker.vhost import Vhost
from leveret.management.calls import Arguments, Call, InVhost, Item, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class OneBinding(Arguments, kw_only=True):
    """`source` is an exchange, `destination` a queue or an exchange."""

    vhost: str = "/"
    source: str
    destination: str
    kind: Literal["queue", "exchange"] = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


def list_bindings(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    """List all bindings except those of the default exchange, to which every queue is bound by its name."""
    return (
        {
            "vhost": vhost.name,
            "source": plain(exchange.name),
            "destination": plain(binding.destination.name),
            "kind": "queue" if isinstance(binding.destination, Queue) else "exchange",
            "routing_key": plain(binding.routing_key),
            "arguments": plain(binding.arguments),
        }
        for vhost in admin.vhosts(arguments.vhost) for exchange, binding in vhost.each_binding()
    )


def _destination(vhost: Vhost, arguments: OneBinding) -> Queue | Exchange:
    found: Queue | Exchange | None
    if arguments.kind == "queue":
        found = vhost.find_queue(arguments.destination)
    else:
        found = vhost.exchanges.get(arguments.destination)
    if found is None:
        raise NotFound(f"no {arguments.kind} '{arguments.destination}' in vhost '{vhost.name}'")
    return found


def _listed(vhost: Vhost, destination: Queue | Exchange, arguments: OneBinding) -> Binding | None:
    """Return the binding that `bindings.list` shows with this routing key and these arguments."""
    exchange = vhost.exchanges.get(arguments.source)
    own = {} if exchange is None else exchange.by_destination.get(destination, {})
    exact = own.get((arguments.routing_key, freeze(arguments.arguments)))
    if exact is not None:
        return exact
    wanted = (arguments.routing_key, plain(arguments.arguments))
    return next((binding for binding in own.values()
                 if (plain(binding.routing_key), plain(binding.arguments)) == wanted), None)


def add(admin: Admin, arguments: OneBinding) -> None:
    """Add a binding. An equal binding may exist already."""
    vhost = admin.vhost(arguments.vhost)
    vhost.bind(_destination(vhost, arguments), arguments.source, arguments.routing_key, arguments.arguments)


def delete(admin: Admin, arguments: OneBinding) -> None:
    vhost = admin.vhost(arguments.vhost)
    destination = _destination(vhost, arguments)
    found = _listed(vhost, destination, arguments)
    if found is None or not vhost.unbind(destination, arguments.source, found.routing_key, found.arguments):
        raise NotFound(f"no binding '{arguments.routing_key}' of {arguments.kind} '{arguments.destination}' to"
                       f" exchange '{arguments.source}' in vhost '{vhost.name}' with these arguments")


CALLS = {
    "bindings.list": Call(list_bindings, InVhost),
    "bindings.add": Call(add, OneBinding, changes=True),
    "bindings.delete": Call(delete, OneBinding, changes=True),
}

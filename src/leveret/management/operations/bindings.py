"""Bindings: list, add, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, UnsetType, field

from leveret.broker.destination import Destination
from leveret.broker.errors import NotFound
from leveret.broker.exchanges.base import Binding, Exchange
from leveret.broker.vhost import Vhost
from leveret.management.json_values import ClientTable, plain
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.operations.typed_arguments import encoded_arguments, typed_arguments
from leveret.management.structs import Arguments, InVhost, Reply, Request, check_arguments, check_routing_key


class OneBinding(Request, kw_only=True):
    """Request about a binding. `source` is an exchange, `destination` a queue or an exchange."""

    vhost: str = "/"
    source: str
    destination: str
    kind: Literal["queue", "exchange"] = "queue"
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_routing_key(self.routing_key)
        check_arguments(self.arguments)


class Add(OneBinding, kw_only=True):
    """Request to add a binding.

    Attributes:
        default: Allows the default exchange, as AMQP 0-9 does.
        encoded: The fields of the arguments as in `BindingInfo`, which have the types that `arguments` lack; "" for none.
    """

    default: bool = False
    encoded: str = ""


class List(InVhost, kw_only=True):
    """Request to list bindings, of one source or one destination of a vhost if set."""

    source: str | None = None
    destination: str | None = None
    kind: Literal["queue", "exchange"] | None = None


class BindingInfo(Reply, kw_only=True):
    """A binding.

    Attributes:
        kind: The kind of the destination.
        encoded: The fields of the arguments in AMQP 0-9-1, in base64, if JSON lacks their types: as a client has encoded
            them, if it uses AMQP 0-9-1.
    """

    vhost: str
    source: str
    destination: str
    kind: Literal["queue", "exchange"]
    routing_key: str
    arguments: ClientTable
    encoded: str | UnsetType = UNSET


def list_bindings(context: Context, request: List) -> Iterator[BindingInfo | None]:
    """List bindings, except those of the default exchange to every queue."""
    for vhost in context.vhosts(request.vhost):
        for exchange, binding in _bindings(vhost, request):
            yield (
                BindingInfo(
                    vhost=vhost.name,
                    source=exchange.name,
                    destination=binding.destination.name,
                    kind=binding.destination.kind,
                    routing_key=binding.routing_key,
                    arguments=ClientTable(binding.arguments),
                    encoded=encoded_arguments(context, binding.arguments, binding.encoded),
                )
                if _matches(binding.destination, request)
                else None
            )


def _bindings(vhost: Vhost, request: List) -> Iterator[tuple[Exchange, Binding]]:
    """Yield the bindings of the narrowest index that covers the request."""
    if request.source is not None:
        exchange = vhost.exchanges.get(request.source)
        sources = [] if exchange is None else [exchange]
    elif request.destination is not None and request.kind is not None:
        sources = list(vhost.sources.get((request.kind, request.destination), {}).values())
    else:
        yield from vhost.each_binding()
        return
    for exchange in sources:
        for destination in list(exchange.by_destination):
            if _matches(destination, request):
                for binding in exchange.bindings_to(destination):
                    yield exchange, binding


def _matches(destination: Destination, request: List) -> bool:
    return request.destination in (None, destination.name) and request.kind in (None, destination.kind)


def _destination(vhost: Vhost, request: OneBinding) -> Destination:
    found = vhost.find_destination(request.kind, request.destination)
    if found is None:
        raise NotFound(f"no {request.kind} '{request.destination}' in vhost '{vhost.name}'")
    return found


def _listed(vhost: Vhost, destination: Destination, request: OneBinding) -> Binding | None:
    """Return the binding with the routing key and arguments that `bindings.list` shows."""
    exchange = vhost.exchanges.get(request.source)
    if exchange is None:
        return None
    exact = exchange.find(destination, request.routing_key, request.arguments)
    if exact is not None:
        return exact
    wanted = (request.routing_key, plain(request.arguments))
    own = exchange.bindings_to(destination)
    return next((binding for binding in own if (plain(binding.routing_key), plain(binding.arguments)) == wanted), None)


def add(context: Context, request: Add) -> None:
    """Add a binding. Succeeds if an equal binding exists."""
    vhost = context.vhost(request.vhost)
    destination = _destination(vhost, request)
    arguments, encoded = typed_arguments(context, request.arguments, request.encoded)
    vhost.bind(destination, request.source, request.routing_key, arguments, encoded, request.default)


def delete(context: Context, request: OneBinding) -> None:
    vhost = context.vhost(request.vhost)
    destination = _destination(vhost, request)
    found = _listed(vhost, destination, request)
    if found is None or not vhost.unbind(destination, request.source, found.routing_key, found.arguments):
        raise NotFound(
            f"no binding '{request.routing_key}' of {request.kind} '{request.destination}' to"
            f" exchange '{request.source}' in vhost '{vhost.name}' with these arguments"
        )


OPERATIONS: Operations = {
    "bindings.list": Operation(list_bindings, List, BindingInfo),
    "bindings.add": Operation(add, Add, changes=True),
    "bindings.delete": Operation(delete, OneBinding, changes=True),
}

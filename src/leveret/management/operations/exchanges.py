"""Exchanges: list, add, delete."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from leveret.broker.errors import NotFound
from leveret.broker.exchanges.base import Exchange
from leveret.broker.policies import effective_definition
from leveret.management.json_values import ClientTable
from leveret.management.operations.definitions import DeclareExchange
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.operations.policies import name_of
from leveret.management.operations.typed_arguments import encoded_arguments, typed_arguments
from leveret.management.structs import InVhost, NamedInVhost, Reply


class List(InVhost, kw_only=True):
    """Request to list exchanges. `encoded` includes the types of their arguments that JSON lacks."""

    encoded: bool = False


class Add(DeclareExchange, kw_only=True):
    """Request to declare an exchange. `encoded` has the fields of the arguments as in `ExchangeInfo`, "" for none."""

    vhost: str = "/"
    encoded: str = ""


class Delete(NamedInVhost, kw_only=True):
    if_unused: bool = False


class ExchangeInfo(Reply, kw_only=True):
    """An exchange with its number of bindings, the policies that apply to it, and its counters of messages.

    Attributes:
        publish_in: Messages published to it, as of the last `statistics.changes`.
        publish_out: Their copies in queues, as of the last `statistics.changes`.
        deduplicates: Whether it drops duplicates.
        deduplication_keys: The number of keys for that; some of them may have expired.
        dropped_duplicates: Messages that it has dropped as duplicates since the broker started.
        encoded: The fields of the arguments in AMQP 0-9-1, in base64, if JSON lacks their types and the request asks for
            them.
    """

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: ClientTable
    bindings: int
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: ClientTable
    publish_in: int
    publish_out: int
    deduplicates: bool
    deduplication_keys: int
    dropped_duplicates: int
    encoded: str | UnsetType = UNSET


def describe(vhost: str, exchange: Exchange) -> ExchangeInfo:
    """Describe an exchange."""
    keys, dropped = exchange.deduplication_figures()
    return ExchangeInfo(
        vhost=vhost,
        name=exchange.name,
        type=exchange.type,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        arguments=ClientTable(exchange.arguments),
        bindings=sum(len(own) for own in exchange.by_destination.values()),
        policy=name_of(exchange.policy),
        operator_policy=name_of(exchange.operator_policy),
        effective_policy_definition=ClientTable(effective_definition(exchange)),
        publish_in=exchange.publish_in,
        publish_out=exchange.publish_out,
        deduplicates=exchange.keys is not None,
        deduplication_keys=keys,
        dropped_duplicates=dropped,
    )


def list_exchanges(context: Context, request: List) -> Iterator[ExchangeInfo]:
    """List exchanges."""
    found = [(vhost.name, exchange) for vhost in context.vhosts(request.vhost) for exchange in vhost.exchanges.values()]
    if not request.encoded:
        return (describe(vhost, exchange) for vhost, exchange in found)
    return (
        replace(describe(vhost, exchange), encoded=encoded_arguments(context, exchange.arguments))
        for vhost, exchange in found
    )


def show(context: Context, request: NamedInVhost) -> ExchangeInfo:
    """Return an exchange."""
    return describe(request.vhost, context.vhost(request.vhost).exchange(request.name))


def add(context: Context, request: Add) -> ExchangeInfo:
    """Declare an exchange, as a client does. Succeeds if an equivalent exchange exists."""
    arguments, _ = typed_arguments(context, request.arguments, request.encoded)
    exchange = context.vhost(request.vhost).declare_exchange(
        request.name,
        request.type,
        durable=request.durable,
        auto_delete=request.auto_delete,
        internal=request.internal,
        arguments=arguments,
    )
    return describe(request.vhost, exchange)


def delete(context: Context, request: Delete) -> None:
    """Delete an exchange."""
    vhost = context.vhost(request.vhost)
    if request.name not in vhost.exchanges:
        raise NotFound(f"no exchange '{request.name}' in vhost '{request.vhost}'")
    vhost.delete_exchange(request.name, if_unused=request.if_unused)


OPERATIONS: Operations = {
    "exchanges.list": Operation(list_exchanges, List, ExchangeInfo),
    "exchanges.show": Operation(show, NamedInVhost, ExchangeInfo),
    "exchanges.add": Operation(add, Add, ExchangeInfo, changes=True),
    "exchanges.delete": Operation(delete, Delete, changes=True, removes=True),
}

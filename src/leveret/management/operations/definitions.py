"""Declaring, binding, purging and deleting on behalf of clients: permission checks, in RabbitMQ's order, and execution.

AMQP 0-x sessions call the functions. The AMQP 1.0 management node performs the operations, which call the functions. A
session owns the exclusive queues that it declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import field

from leveret.broker.destination import Destination
from leveret.broker.errors import AccessRefused, NotFound, PreconditionFailed
from leveret.broker.exchanges.base import Binding, Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.management.json_values import ClientTable, plain
from leveret.management.operations.operation import EACH, Right, VhostContext, VhostOperation, VhostOperations
from leveret.management.structs import Arguments, Messages, Reply, Request, check_arguments, check_routing_key

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

# Maximum number of bindings in a reply, and of bindings to compare in a search, so that other clients do not wait long.
MAX_LISTED: Final = 1000
MAX_COMPARED: Final = 2000
# Units of work to list and to compare a binding.
LIST_WORK: Final = 8
COMPARE_WORK: Final = 2
# A search examines 2 ** SEARCH_SHIFT bindings per microsecond.
SEARCH_SHIFT: Final = 4


class Definer(Protocol):
    """Caller of a declaration: a session, or the context of an operation. `session` owns its exclusive queues."""

    @property
    def vhost(self) -> Vhost: ...

    @property
    def session(self) -> object: ...

    def check(self, permission: str, resource: str, /) -> None:
        """Raise `AccessRefused` unless the caller may configure, write or read an exchange or queue."""

    def check_topic(self, permission: str, exchange: str, routing_key: str, /) -> None:
        """Raise `AccessRefused` unless the caller may write or read this routing key of a topic exchange."""


def declare_queue(
    definer: Definer, name: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: FieldTable
) -> Queue:
    """Declare a queue, or check that the existing queue is equivalent."""
    definer.check("configure", name)
    target = arguments.get("x-dead-letter-exchange")
    if isinstance(target, str):
        definer.check("read", name)
        definer.check("write", target)
    return definer.vhost.declare_queue(
        name, definer.session, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
    )


def delete_queue(definer: Definer, name: str, *, if_unused: bool = False, if_empty: bool = False) -> tuple[int, bool]:
    """Delete a queue. Returns its number of ready messages, and whether the log must record the deletion."""
    definer.check("configure", name)
    found = definer.vhost.find_queue(name)
    if found is not None:
        found.catch_up()
    stored = found is not None and found.stored
    return definer.vhost.delete_queue(name, definer.session, if_unused=if_unused, if_empty=if_empty), stored


def purge_queue(definer: Definer, name: str) -> tuple[int, bool]:
    """Purge a queue. Returns the number of purged messages, and whether the log must record the purge."""
    definer.check("read", name)
    found = definer.vhost.queue(name, definer.session)
    found.catch_up()
    return found.purge(), found.stored


def declare_exchange(
    definer: Definer, name: str, type_name: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
) -> Exchange:
    """Declare an exchange, or check that the existing exchange is equivalent."""
    if name:
        definer.check("configure", name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        definer.check("read", name)
        definer.check("write", alternate)
    return definer.vhost.declare_exchange(
        name, type_name, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
    )


def delete_exchange(definer: Definer, name: str, *, if_unused: bool = False) -> None:
    if name:
        definer.check("configure", name)
    definer.vhost.delete_exchange(name, if_unused=if_unused)


def check_queue_binding(definer: Definer, queue: str, source: str, routing_key: str, default: bool = False) -> None:
    """Raise `AccessRefused` unless the definer may bind this queue to this exchange and unbind it.

    `default` allows the default exchange. A binding to it gets the messages for the queue with the name of its key.
    """
    definer.vhost.check_bindable(source, default)
    definer.check("write", queue)
    if not source and routing_key != queue:
        definer.check("read", routing_key)
    _check_source(definer, source, routing_key)


def _check_source(definer: Definer, source: str, routing_key: str) -> None:
    definer.check("read", source)
    exchange = definer.vhost.exchanges.get(source)
    if exchange is not None and exchange.has_topics:
        definer.check_topic("read", source, routing_key)


def bind_queue(
    definer: Definer,
    queue: str,
    source: str,
    routing_key: str,
    arguments: FieldTable,
    encoded: bytes = b"",
    default: bool = False,
) -> Queue:
    check_queue_binding(definer, queue, source, routing_key, default)
    vhost = definer.vhost
    vhost.exchange(source)
    found = vhost.queue(queue, definer.session)
    vhost.bind(found, source, routing_key, arguments, encoded, default)
    return found


def unbind_queue(
    definer: Definer, queue: str, source: str, routing_key: str, arguments: FieldTable, default: bool = False
) -> None:
    """Remove a binding. Except in strict mode, a missing binding succeeds without permission for the queue."""
    check_queue_binding(definer, queue, source, routing_key, default)
    vhost = definer.vhost
    if vhost.strict or vhost.is_bound(queue, source, routing_key, arguments):
        vhost.unbind(vhost.queue(queue, definer.session), source, routing_key, arguments, default)


def check_exchange_binding(definer: Definer, destination: str, source: str, routing_key: str) -> None:
    """Raise `AccessRefused` unless the definer may bind the destination to the source and unbind it."""
    if not destination or not source:
        raise AccessRefused("the default exchange cannot be bound to another exchange")
    definer.check("write", destination)
    _check_source(definer, source, routing_key)


def bind_exchange(
    definer: Definer, destination: str, source: str, routing_key: str, arguments: FieldTable, encoded: bytes = b""
) -> None:
    check_exchange_binding(definer, destination, source, routing_key)
    vhost = definer.vhost
    vhost.bind(vhost.exchange(destination), source, routing_key, arguments, encoded)


def unbind_exchange(definer: Definer, destination: str, source: str, routing_key: str, arguments: FieldTable) -> None:
    """Remove a binding. A missing binding succeeds, except in strict mode."""
    check_exchange_binding(definer, destination, source, routing_key)
    vhost = definer.vhost
    if vhost.strict or (destination in vhost.exchanges and source in vhost.exchanges):
        vhost.unbind(vhost.exchange(destination), source, routing_key, arguments)


class OneQueue(Request, kw_only=True):
    name: str


class DeclareQueue(OneQueue, kw_only=True):
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)


class DeleteQueue(OneQueue, kw_only=True):
    if_unused: bool = False
    if_empty: bool = False


class OneExchange(Request, kw_only=True):
    name: str


class DeleteExchange(OneExchange, kw_only=True):
    if_unused: bool = False


class DeclareExchange(OneExchange, kw_only=True):
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)


class Bindings(Request, kw_only=True):
    """Request about the bindings from an exchange to a destination with one routing key."""

    source: str
    destination: str
    kind: Literal["queue", "exchange"]
    routing_key: str


class OneBinding(Bindings, kw_only=True):
    arguments: Arguments = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_routing_key(self.routing_key)
        check_arguments(self.arguments)


class QueueDefinition(Reply, kw_only=True):
    """A queue. `stored` says whether the log records it."""

    vhost: str
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    type: str
    arguments: ClientTable
    messages: int
    consumers: int
    stored: bool


class ExchangeDefinition(Reply, kw_only=True):
    """An exchange. `stored` says whether the log records it."""

    name: str
    stored: bool


class RemovedMessages(Messages, kw_only=True):
    """The number of removed messages, and whether the log must record the removal."""

    stored: bool


class BindingArguments(Reply, kw_only=True):
    """The arguments of each of the bindings."""

    arguments: list[ClientTable]


def _describe(queue: Queue) -> QueueDefinition:
    queue.catch_up()
    return QueueDefinition(
        vhost=queue.vhost.name,
        name=queue.name,
        durable=queue.durable,
        exclusive=queue.lifetime.exclusive_owner is not None,
        auto_delete=queue.lifetime.auto_delete,
        type=queue.settings.type,
        arguments=ClientTable(queue.arguments),
        messages=queue.ready_count,
        consumers=len(queue.consumers),
        stored=queue.stored,
    )


def perform_declare_queue(context: VhostContext, request: DeclareQueue) -> QueueDefinition:
    """Declare a queue. Succeeds if an equivalent queue exists."""
    return _describe(
        declare_queue(
            context,
            request.name,
            durable=request.durable,
            exclusive=request.exclusive,
            auto_delete=request.auto_delete,
            arguments=request.arguments,
        )
    )


def perform_show_queue(context: VhostContext, request: OneQueue) -> QueueDefinition:
    """Return a queue, if the user has any permission for it."""
    context.check_any(request.name)
    queue = context.vhost.find_queue(request.name)
    if queue is None:
        raise NotFound(f"no queue '{request.name}' in vhost '{context.vhost.name}'")
    return _describe(queue)


def perform_delete_queue(context: VhostContext, request: DeleteQueue) -> RemovedMessages:
    """Delete a queue and return its number of ready messages. Deleting a missing queue succeeds."""
    if context.vhost.find_queue(request.name) is None:
        return RemovedMessages(messages=0, stored=False)  # in strict mode too
    messages, stored = delete_queue(context, request.name, if_unused=request.if_unused, if_empty=request.if_empty)
    return RemovedMessages(messages=messages, stored=stored)


def perform_purge_queue(context: VhostContext, request: OneQueue) -> RemovedMessages:
    """Purge the ready messages of a queue."""
    messages, stored = purge_queue(context, request.name)
    return RemovedMessages(messages=messages, stored=stored)


def perform_declare_exchange(context: VhostContext, request: DeclareExchange) -> ExchangeDefinition:
    """Declare an exchange. Succeeds if an equivalent exchange exists."""
    exchange = declare_exchange(
        context,
        request.name,
        request.type,
        durable=request.durable,
        auto_delete=request.auto_delete,
        internal=request.internal,
        arguments=request.arguments,
    )
    return ExchangeDefinition(name=exchange.name, stored=exchange.durable)


def perform_delete_exchange(context: VhostContext, request: DeleteExchange) -> Reply:
    """Delete an exchange. Deleting a missing exchange succeeds, in strict mode too."""
    if request.name in context.vhost.exchanges or request.name.startswith("amq."):
        delete_exchange(context, request.name, if_unused=request.if_unused)
    else:
        context.check("configure", request.name)
    return Reply()


def perform_bind(context: VhostContext, request: OneBinding) -> Reply:
    """Add a binding. Succeeds if an equal binding exists."""
    if request.kind == "queue":
        bind_queue(context, request.destination, request.source, request.routing_key, request.arguments)
    else:
        bind_exchange(context, request.destination, request.source, request.routing_key, request.arguments)
    return Reply()


def perform_unbind(context: VhostContext, request: OneBinding) -> Reply:
    """Remove a binding. Removing a missing binding succeeds, in strict mode too."""
    is_queue = request.kind == "queue"
    check = check_queue_binding if is_queue else check_exchange_binding
    check(context, request.destination, request.source, request.routing_key)
    exchange, destination = _ends(context.vhost, request)
    binding = None
    if exchange is not None and destination is not None:
        binding = exchange.find(destination, request.routing_key, request.arguments)
    if binding is None and request.arguments:
        wanted = plain(request.arguments)  # lists show values that JSON does not have as other ones
        candidates = between(context.vhost, request, MAX_COMPARED, COMPARE_WORK)
        binding = next((item for item in candidates if plain(item.arguments) == wanted), None)
    if binding is not None:
        unbind = unbind_queue if is_queue else unbind_exchange
        unbind(context, request.destination, request.source, request.routing_key, binding.arguments)
    return Reply()


def perform_list_bindings(context: VhostContext, request: Bindings) -> BindingArguments:
    """List the bindings with one routing key between two objects, if the user has any permission for both."""
    context.check_any(request.source)
    context.check_any(request.destination)
    found = between(context.vhost, request, MAX_LISTED, LIST_WORK)
    return BindingArguments(arguments=[ClientTable(binding.arguments) for binding in found])


def perform_compare_bindings(context: VhostContext, request: Bindings) -> BindingArguments:
    """List the bindings with one routing key between two objects, if the user may unbind them."""
    check = check_queue_binding if request.kind == "queue" else check_exchange_binding
    check(context, request.destination, request.source, request.routing_key)
    found = between(context.vhost, request, MAX_COMPARED, COMPARE_WORK)
    return BindingArguments(arguments=[ClientTable(binding.arguments) for binding in found])


def between(vhost: Vhost, request: Bindings, limit: int, work: int) -> list[Binding]:
    """Return the bindings with one routing key between two objects.

    Args:
        vhost: The vhost.
        request: The exchange, the destination and the routing key.
        limit: The maximum number of bindings. Raises `PreconditionFailed` if there are more.
        work: The units of work per binding.
    """
    exchange, destination = _ends(vhost, request)
    own = [] if exchange is None or destination is None else exchange.bindings_to(destination)
    found = [binding for binding in own if binding.routing_key == request.routing_key]
    vhost.broker.work += len(own) >> SEARCH_SHIFT
    if len(found) > limit:
        raise PreconditionFailed(
            f"{len(found)} bindings from exchange '{request.source}' to '{request.destination}' have this routing key;"
            f" expected at most {limit}: unbind over AMQP 0-9-1, or list them with `leveret bindings list`"
        )
    vhost.broker.work += len(found) * work
    return found


def _ends(vhost: Vhost, request: Bindings) -> tuple[Exchange | None, Destination | None]:
    """Return the exchange and the destination of a request, None if they do not exist."""
    return vhost.exchanges.get(request.source), vhost.find_destination(request.kind, request.destination)


QUEUE_DECLARE: Final = VhostOperation(perform_declare_queue, DeclareQueue, QueueDefinition, Right("configure", "name"))
QUEUE_SHOW: Final = VhostOperation(perform_show_queue, OneQueue, QueueDefinition, EACH)
QUEUE_DELETE: Final = VhostOperation(perform_delete_queue, DeleteQueue, RemovedMessages, Right("configure", "name"))
QUEUE_PURGE: Final = VhostOperation(perform_purge_queue, OneQueue, RemovedMessages, Right("read", "name"))
EXCHANGE_DECLARE: Final = VhostOperation(perform_declare_exchange, DeclareExchange, ExchangeDefinition, EACH)
EXCHANGE_DELETE: Final = VhostOperation(perform_delete_exchange, DeleteExchange, Reply, EACH)
BINDING_ADD: Final = VhostOperation(perform_bind, OneBinding, Reply, EACH)
BINDING_DELETE: Final = VhostOperation(perform_unbind, OneBinding, Reply, EACH)
BINDING_LIST: Final = VhostOperation(perform_list_bindings, Bindings, BindingArguments, EACH)
BINDING_COMPARE: Final = VhostOperation(perform_compare_bindings, Bindings, BindingArguments, EACH)

DEFINITIONS: VhostOperations = {
    "queue.declare": QUEUE_DECLARE,
    "queue.show": QUEUE_SHOW,
    "queue.delete": QUEUE_DELETE,
    "queue.purge": QUEUE_PURGE,
    "exchange.declare": EXCHANGE_DECLARE,
    "exchange.delete": EXCHANGE_DELETE,
    "binding.add": BINDING_ADD,
    "binding.delete": BINDING_DELETE,
    "binding.list": BINDING_LIST,
    "binding.compare": BINDING_COMPARE,
}

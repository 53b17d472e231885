"""A virtual host: its exchanges, queues and bindings, and the routes between them.

All operations are independent of the protocol. The caller has checked permissions. Errors are `BrokerError`s.
"""

from __future__ import annotations

import base64
import logging
import re
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.arguments import (
    CLASSIC,
    EXCHANGE_ARGUMENTS,
    QueueSettings,
    equivalent,
    inequivalent,
    parse_exchange_arguments,
)
from leveret.broker.consumer import NO_CLIENT, Client
from leveret.broker.dead_letter import DeadLetters, split_address
from leveret.broker.destination import Destination
from leveret.broker.errors import (
    AccessRefused,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from leveret.broker.events import Events, EventsExchange
from leveret.broker.exchanges.base import Binding, Exchange
from leveret.broker.exchanges.control import CONTROL, RESERVED, ControlExchange, check_not_control
from leveret.broker.exchanges.direct import DirectExchange
from leveret.broker.exchanges.registry import exchange_class, make_exchange
from leveret.broker.firehose import Firehose
from leveret.broker.indexing import check_indexed
from leveret.broker.jobs import logged
from leveret.broker.message import Message
from leveret.broker.metadata import Record
from leveret.broker.parameters import MAX_CONNECTIONS, MAX_QUEUES, Parameters
from leveret.broker.policies import Policies
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.pending_dead_letters import PendingDeadLetters
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_list import QueueList
from leveret.broker.queues.registry import QUEUE_ARGUMENTS, TYPES, make_queue, parse_queue_arguments
from leveret.broker.queues.requests import RequestQueue
from leveret.broker.routing import Route, check_keys, depends_on_message, destinations_of, resolve, resolve_delayed
from leveret.broker.statistics import VhostStatistics
from leveret.broker.table import Table
from leveret.broker.transactions.branches import Branches
from leveret.broker.transactions.sink_transactions import SinkTransactions
from leveret.broker.values import FieldTable, Frozen
from leveret.broker.watches import ExchangeWatch

if TYPE_CHECKING:
    from leveret.broker.broker import Broker, VhostSettings
    from leveret.broker.leases.recovery import Restoring
    from leveret.broker.log import Recovery
    from leveret.broker.streams.queue import StreamQueue
    from leveret.broker.streams.recovery import StreamRecords
    from leveret.broker.tails import Tail

logger = logging.getLogger("leveret.broker")

PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
MAX_ROUTES: Final = 65536
# Shared by all queues without arguments.
NO_ARGUMENTS: Final[FieldTable] = {}
# Bytes of a header (as a power of two) that are decoded per unit of work.
HEADER_SHIFT: Final = 5
STRICT_NAME: Final = re.compile(r"[A-Za-z0-9\-_.:]*", re.ASCII)
STRICT_DELIVERY_LIMIT: Final = 5
# The value of a vhost in the metadata once it is `has_other_classes`; b"" before.
# Units of work to add or remove a queue, and the additional ones to add a stream.
QUEUE_WORK: Final = 20
# Units of work to remove a binding.
BINDING_WORK: Final = 16
OTHER_CLASSES: Final = b"mixed"
DEAD_QUEUE: Final = "amq.dead"
# Effect of an unknown argument of a queue or an exchange, for the log.
STORED: Final = "is stored but has no effect"
# Maximum number of routes whose counters are folded in one turn.
MAX_FOLDED_AT_ONCE: Final = 1000


class Vhost:
    """One virtual host. `topology` changes whenever a route may change."""

    def __init__(self, broker: Broker, name: str, settings: VhostSettings) -> None:
        self.broker = broker
        self.name = name
        self.settings = settings
        self.strict = settings.strict
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        # All queues, for work in steps.
        self.queue_list: QueueList[Queue] = QueueList()
        # The queues that are streams.
        self.streams: QueueList[StreamQueue] = QueueList()
        self.pending_dead_letters = PendingDeadLetters()
        self.routes: dict[bytes, Route] = {}
        # Cache: whether routes of an exchange depend on more than the address.
        self.depending: dict[str, bool] = {}
        # The live tails of exchanges, by name.
        self.tails: dict[str, list[Tail]] = {}
        self.topology = 0
        self.statistics = VhostStatistics()
        self.dead_letters = DeadLetters(self)
        # Exchanges with bindings to a destination, by its kind and name.
        self.sources: dict[tuple[str, str], dict[str, Exchange]] = {}
        # The exclusive queues of each connection.
        self.exclusive: dict[object, dict[Queue, None]] = {}
        # Closed connections whose exclusive queues are still being removed.
        self.departed: set[object] = set()
        self.connections = 0
        self.policies = Policies(self)
        self.parameters = Parameters(self)
        # The lower of the limits in the settings and in the parameters, -1 for none.
        self.max_queues = -1
        self.max_connections = -1
        self.new_names: set[str] = set()
        self.removed = False
        # Whether contents of the classes file, stream or message of 0-9 were published here, so that consumers of a class
        # must select them.
        self.has_other_classes = False
        # Identity of the predeclared exchanges in stored bindings.
        self.number = 0
        # Bindings whose records have no numbers, or whose definitions were lost.
        self.unnumbered: list[tuple[Exchange, Destination, str, FieldTable, bytes]] = []
        # Exchanges for which a start found bindings to deleted objects.
        self.unbound: dict[Exchange, None] = {}
        self.default_exchange: Exchange = DirectExchange("", durable=True)
        self.exchanges[""] = self.default_exchange
        for exchange_name, type_name in PREDECLARED:
            self.exchanges[exchange_name] = make_exchange(type_name, exchange_name, durable=True)
        self.exchanges[CONTROL] = ControlExchange(RequestQueue(self))
        self.sink_transactions = SinkTransactions(self)
        self.branches = Branches(self)
        events_exchange = EventsExchange()
        self.exchanges[events_exchange.name] = events_exchange
        self.events = Events(self, events_exchange)
        self.firehose = Firehose(self)
        self.exchanges[self.firehose.exchange.name] = self.firehose.exchange
        self.configure(settings)

    def configure(self, settings: VhostSettings) -> None:
        """Apply settings. Strict mode adds a queue for messages that exceed the delivery limit."""
        was_strict = self.strict
        self.settings = settings
        self.strict = settings.strict
        self.update_limits()
        if self.strict or was_strict:
            for queue in self.queues.values():
                self.policies.configure(queue)
        if self.strict and DEAD_QUEUE not in self.queues:
            self._add_queue(DEAD_QUEUE, True, None, False, {}, QueueSettings({}, {}))

    def update_limits(self) -> None:
        """Determine the limits from the settings and the parameters."""
        self.max_queues = _lower(self.settings.max_queues, self.parameters.limit(MAX_QUEUES))
        self.max_connections = _lower(self.settings.max_connections, self.parameters.limit(MAX_CONNECTIONS))

    def limit_deliveries(self, name: str, settings: QueueSettings) -> QueueSettings:
        """Return the settings with the default delivery limit of strict mode (0-9-1 basic.deliver.01)."""
        if not self.strict or name == DEAD_QUEUE or settings.delivery_limit is not None:
            return settings
        limited = QueueSettings(settings.given, settings.unknown, settings.defaults)
        limited.delivery_limit = STRICT_DELIVERY_LIMIT
        if limited.dead_letter_exchange is None:
            limited.dead_letter_exchange = ""
            limited.dead_letter_routing_key = DEAD_QUEUE
        return limited

    def set_number(self, number: int) -> None:
        """Give a new vhost its number, with its predeclared exchanges."""
        self.number = number
        for exchange in self.exchanges.values():
            if _is_predeclared(exchange):
                exchange.id = number

    def note_other_classes(self) -> None:
        """Note that the vhost has contents of 0-9 classes other than basic."""
        if not self.has_other_classes and not self.removed:
            self.has_other_classes = True
            self.broker.log.put(metadata.VHOST, metadata.make_key(self.name), OTHER_CLASSES)

    def clear(self) -> Iterator[int]:
        """Delete everything: queues and exchanges in the returned steps, the rest at once."""
        self.removed = True
        self.branches.clear()
        self.pending_dead_letters.drop()
        self.sink_transactions.clear()
        self.policies.clear()
        self.parameters.clear()
        return self._clearing()

    def _clearing(self) -> Iterator[int]:
        """Delete the queues and exchanges. A start in between drops the remaining ones."""
        queues = list(self.queues.values())
        queues.reverse()
        while queues:
            queue = queues.pop()  # so that they are freed one by one
            try:
                self.remove_queue(queue)
            except Exception:  # the others must still be removed
                logger.exception("cannot remove queue '%s' in vhost '%s'", queue.name, self.name)
            yield QUEUE_WORK
        for exchange in list(self.exchanges.values()):
            if _is_predeclared(exchange):
                self.broker.jobs.removals.add(self._removing_bindings_of_exchange(exchange))
            else:
                self._remove_exchange(exchange)
            yield QUEUE_WORK

    # Routing

    def route(self, address: bytes) -> Route:
        """Return the route of an address. Raises NotFound if the exchange does not exist."""
        route = self.routes.get(address)
        if route is not None:
            return route
        exchange_name, routing_key = split_address(address)
        exchange = self.exchanges.get(exchange_name)
        if exchange is None:
            staged = self.sink_transactions.route(exchange_name, routing_key)
            if staged is not None:
                return staged  # not cached: it serves one publisher for a short time
            raise NotFound(f"no exchange '{exchange_name}' in vhost '{self.name}'")
        depends = depends_on_message(self, exchange)
        queues = [] if depends else resolve(self, exchange, [routing_key], {}, None)
        route = Route(exchange, exchange_name, routing_key, queues, depends, self._watch_of(exchange_name))
        if len(self.routes) >= MAX_ROUTES:
            # Connections drop them, too: what they publish next is counted in the routes of this cache.
            self.topology += 1
            self._drop_routes()
        self.routes[address] = route
        return route

    def _watch_of(self, exchange: str) -> ExchangeWatch | None:
        events = self.events.of_exchange(exchange)
        tracing = self.broker.tracing
        traces = None if tracing is None else tracing.of_exchange(self.name, exchange)
        firehose = self.firehose.of_exchange(exchange) if self.firehose.on else None
        tails = self.tails.get(exchange, [])
        if events is None and traces is None and firehose is None and not tails:
            return None
        return ExchangeWatch(events, traces, firehose, tails)

    def set_tails(self, exchange: str, tails: list[Tail]) -> None:
        """Set the live tails of an exchange."""
        if tails:
            self.tails[exchange] = tails
        else:
            self.tails.pop(exchange, None)
        self.topology_changed()

    def route_own(self, message: Message) -> list[Queue]:
        """Return the queues of a message that the broker publishes itself."""
        route = self.route(message.address)
        return self.route_message(route, message, [], NO_CLIENT) if route.dynamic else route.queues

    def route_message(self, route: Route, message: Message, more_keys: list[str], client: Client) -> list[Queue]:
        """Return the queues of one message whose route is `dynamic` or that has CC or BCC headers."""
        queues = self.queues_of(route, message, more_keys)
        if route.depends:
            route.latest = queues
        destinations = destinations_of(queues)
        self.statistics.count(route.exchange, len(destinations))
        self.statistics.count_incoming(route.exchange, destinations)
        if route.watch is not None:
            route.watch.published(message, destinations, more_keys, client)
        return queues

    def queues_of(self, route: Route, message: Message, more_keys: list[str]) -> list[Queue]:
        """Return the queues of one message without publishing it."""
        if not more_keys and not route.depends:
            return route.queues
        keys = check_keys(self.broker, [route.routing_key, *more_keys])
        if not route.depends:
            return resolve(self, route.exchange, keys, {}, None)
        self.broker.work += len(message.header) >> HEADER_SHIFT
        queues, route.delay = resolve_delayed(self, route.exchange, keys, self.broker.decode_headers(message), message)
        return queues

    def topology_changed(self) -> None:
        self.topology += 1
        self.broker.count_topology_change()
        if self.routes:
            self._drop_routes()
        self.depending.clear()
        self.events.rebind()

    def _drop_routes(self) -> None:
        """Empty the cache of routes; their counters are folded in steps if there are many."""
        routes = list(self.routes.values())
        self.routes.clear()
        if len(routes) <= MAX_FOLDED_AT_ONCE:
            for route in routes:
                self.statistics.fold(route)
        else:
            self.broker.jobs.run_steps(self._folding(routes))

    def _folding(self, routes: list[Route]) -> Iterator[int]:
        while routes:
            self.statistics.fold(routes.pop())
            yield 1

    def published_to(self, name: str) -> Exchange | None:
        """Return the exchange that a publish refers to, also through a sink transaction; None if it does not exist.

        Raises:
            NotFound: If the sink transaction does not exist or its name is malformed.
        """
        return self.exchanges.get(name) or self.sink_transactions.exchange(name)

    # Exchanges

    def exchange(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def declare_exchange(
        self,
        name: str,
        type_name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> Exchange:
        """Declare an exchange, or check that the one that exists is the same (0-9-1 exchange.declare)."""
        arguments = arguments or {}
        if not name:
            raise AccessRefused("the default exchange cannot be declared")
        exchange_class(type_name)
        settings = parse_exchange_arguments(arguments, strict=self.strict)
        existing = self.exchanges.get(name)
        if existing is not None:
            if existing.type != type_name:
                text = inequivalent("type", f"exchange '{name}' in vhost '{self.name}'", type_name, existing.type)
                raise NotAllowed(text) if self.strict else PreconditionFailed(text)
            self._check_same("exchange", name, "durable", durable, existing.durable)
            self._check_same("exchange", name, "auto_delete", auto_delete, existing.auto_delete)
            self._check_same("exchange", name, "internal", internal, existing.internal)
            self._check_arguments("exchange", name, arguments, existing.arguments)
            return existing
        self._check_new_name("exchange", name)
        self.broker.check_definition(self, f"exchange '{name}'", arguments)
        self.broker.unknown_arguments.note(EXCHANGE_ARGUMENTS, settings.unknown, STORED)
        exchange = make_exchange(
            type_name, name, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        exchange.alternate = settings.alternate_exchange
        if durable:
            exchange.id = self.broker.new_queue_id()
        exchange.attach(self)
        self.policies.apply_to_exchange(exchange)
        self.exchanges[name] = exchange
        self.topology_changed()
        if durable:
            self._keep_exchange(exchange)
        return exchange

    def _keep_exchange(self, exchange: Exchange) -> None:
        """Write the definition of an exchange to the log."""
        self.broker.log.put(
            metadata.EXCHANGE,
            metadata.make_key(self.name, exchange.name),
            metadata.pack(
                {
                    "type": exchange.type,
                    "auto_delete": exchange.auto_delete,
                    "internal": exchange.internal,
                    "arguments": exchange.arguments,
                    "number": exchange.id,
                }
            ),
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> bool:
        """Delete an exchange; return False if it does not exist."""
        if not name or name.startswith("amq."):
            raise AccessRefused(f"exchange '{name}' is pre-declared and cannot be deleted")
        check_not_control(name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            if self.strict:
                raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
            return False
        if if_unused and exchange.is_bound():
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        self._remove_exchange(exchange)
        return True

    def _remove_exchange(self, exchange: Exchange) -> None:
        exchange.deleted = True
        exchange.detach()
        self.exchanges.pop(exchange.name, None)
        if exchange.durable:
            self.broker.log.put(metadata.EXCHANGE, metadata.make_key(self.name, exchange.name), None)
        self._remove_bindings_to(exchange)
        self.broker.jobs.removals.add(self._removing_bindings_of_exchange(exchange))
        self.topology_changed()
        exchange.notify_senders(self.broker.jobs, f"exchange '{exchange.name}' in vhost '{self.name}' was deleted")

    def _removing_bindings_of_exchange(self, exchange: Exchange) -> Iterator[int]:
        """Remove the bindings of a deleted exchange. A start in between ignores the remaining ones."""
        for destination in list(exchange.by_destination):
            own = exchange.unbind_destination(destination)
            if len(own):
                self._forget_source(exchange, destination)
                yield from logged(self._removing_bindings_to_one(exchange, destination, own))
        yield 1

    def _removing_bindings_to_one(
        self, exchange: Exchange, destination: Destination, own: Table[tuple[str, Frozen], Binding]
    ) -> Iterator[int]:
        """Remove bindings to one destination that their exchange no longer lists."""
        kept = exchange.durable and destination.stored
        for binding in own.drain():
            exchange.removed(binding)
            if kept and not self._is_bound_again(exchange, destination, binding):
                self.broker.log.put(
                    metadata.BINDING, self._binding_key(exchange, destination, binding.routing_key, binding.arguments), None
                )
            yield BINDING_WORK

    def _is_bound_again(self, exchange: Exchange, destination: Destination, binding: Binding) -> bool:
        """Return whether the log has an equal binding between objects with these names, under the same key."""
        vhost = self.broker.vhosts.get(self.name)  # both, and this vhost, may have been re-created
        if vhost is None:
            return False
        source = vhost.exchanges.get(exchange.name)
        other = vhost._named(destination.kind, destination.name)
        return (
            source is not None
            and source.durable
            and other is not None
            and other.stored
            and source.has(other, binding.routing_key, binding.arguments)
        )

    # Queues

    def find_queue(self, name: str) -> Queue | None:
        """Return a queue by name, None if it does not exist.

        An exclusive queue of a closed connection is removed first. Names from clients are looked up here, not in `queues`.
        """
        if self.departed:
            self.remove_orphan(name)
        return self.queues.get(name)

    def queue(self, name: str, owner: object) -> Queue:
        """Return a queue for a connection. Raises NotFound, or ResourceLocked if it is exclusive to another connection."""
        found = self.find_queue(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if found.lifetime.exclusive_owner is not None and found.lifetime.exclusive_owner is not owner:
            raise ResourceLocked(f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'")
        return found

    def declare_queue(
        self,
        name: str,
        owner: object,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: FieldTable | None = None,
    ) -> Queue:
        """Declare a queue, or check that the one that exists is the same (0-9-1 queue.declare)."""
        arguments = self._with_queue_type(
            name, arguments or NO_ARGUMENTS, durable=durable, exclusive=exclusive, auto_delete=auto_delete
        )
        settings = parse_queue_arguments(
            arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete, strict=self.strict
        )
        if self.find_queue(name) is not None:
            existing = self.queue(name, owner)
            if exclusive != (existing.lifetime.exclusive_owner is not None) and not self.strict:
                raise ResourceLocked(
                    f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}': it"
                    f" was declared {'without' if exclusive else 'with'} exclusive"
                )
            self._check_same("queue", name, "durable", durable, existing.durable)
            self._check_same("queue", name, "exclusive", exclusive, existing.lifetime.exclusive_owner is not None)
            if not self.strict:  # queue.declare.auto-delete.pre-existence
                self._check_same("queue", name, "auto_delete", auto_delete, existing.lifetime.auto_delete)
            self._check_arguments("queue", name, arguments, existing.arguments)
            existing.lifetime.touch()
            self.broker.churn.queue_declared()
            return existing
        if not name:
            name = self.new_queue_name()
        elif name not in self.new_names:
            self._check_new_name("queue", name)
        self.new_names.discard(name)
        self.broker.check_queue_limit(self)
        self.broker.unknown_arguments.note(QUEUE_ARGUMENTS, settings.unknown, STORED)
        queue = self._add_queue(name, durable, owner if exclusive else None, auto_delete, arguments, settings)
        self.broker.churn.queue_declared()
        return queue

    def _with_queue_type(
        self, name: str, arguments: FieldTable, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> FieldTable:
        """Return the arguments of queue.declare with the type of the existing queue, or the default type of the vhost.

        A change of the default type does not affect existing queues: declaring one again without a type succeeds.
        """
        wanted = self.settings.default_queue_type
        if wanted == CLASSIC or "x-queue-type" in arguments:
            return arguments
        existing = self.queues.get(name)
        if existing is not None:
            if "x-queue-type" not in existing.arguments:
                return arguments
            wanted = existing.settings.type
        elif TYPES[wanted].durable and (not durable or exclusive or auto_delete):
            return arguments
        return {**arguments, "x-queue-type": wanted}

    def new_queue_name(self) -> str:
        """Return a new name for a server-named queue. It may be declared once although it is reserved."""
        name = "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        self.new_names = {name}
        return name

    def _add_queue(
        self,
        name: str,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: FieldTable,
        settings: QueueSettings,
    ) -> Queue:
        self.broker.check_definition(self, f"queue '{name}'", arguments)
        queue_id = self.broker.new_queue_id()
        queue = make_queue(
            QueueDefinition(self, queue_id, name, durable, exclusive_owner, auto_delete, arguments, settings)
        )
        self.broker.work += QUEUE_WORK
        if not self.policies.apply(queue) and self.strict:
            self.policies.configure(queue)
        self.queues[name] = queue
        self.queue_list.add(queue)
        self.broker.churn.queue_created()
        if self.events.bound:
            self.events.watch(queue)
        if self.broker.tracing is not None:
            self.broker.tracing.watch(queue)
        if self.firehose.on:
            self.firehose.watch(queue)
        if exclusive_owner is not None:
            self.exclusive.setdefault(exclusive_owner, {})[queue] = None
        self.topology_changed()
        if queue.stored:
            self.keep_queue(queue)
        queue.lifetime.touch()
        return queue

    def keep_queue(self, queue: Queue) -> None:
        """Write the definition of a queue to the log, unless it is deleted: its name may belong to another queue."""
        if queue.deleted:
            return
        self.broker.log.put(metadata.QUEUE, metadata.make_key(self.name, queue.name), metadata.pack(queue.record()))

    def add_reply_queue(self, name: str, settings: QueueSettings) -> Queue:
        """Create a queue for direct replies to one channel: transient, deleted with its consumer."""
        return self._add_queue(name, False, None, True, {}, settings)

    def add_own_queue(self, name: str, durable: bool) -> Queue:
        """Create a queue that a protocol manages: a dynamic node, a subscription."""
        queue = self._add_queue(name, durable, None, False, {}, QueueSettings({}, {}))
        queue.lifetime.make_temporary()
        return queue

    def delete_queue(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; return the number of ready messages. Deleting a missing queue succeeds by default."""
        if self.find_queue(name) is None and not self.strict:
            return 0
        queue = self.queue(name, owner)
        if if_unused and queue.consumers.is_consumed():
            raise PreconditionFailed(f"queue '{name}' in vhost '{self.name}' in use")
        check_indexed(queue)
        # Only the specification counts unacked messages as messages in the queue.
        if if_empty and (queue.ready_count or queue.leased_count or (self.strict and queue.unacked)):
            raise PreconditionFailed(f"queue '{name}' in vhost '{self.name}' is not empty")
        return self.remove_queue(queue, self.strict and queue.settings.dead_letter_exchange is not None)

    def remove_queue(self, queue: Queue, keep_pending: bool = False) -> int:
        """Delete a queue with its bindings and messages; with `keep_pending`, pending dead letters are published first."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        self.queue_list.discard(queue)
        self.statistics.retire_queue(queue)
        self.broker.churn.queue_deleted()
        if self.broker.definitions_left >= 0:
            self.broker.definitions_left += 1
        if queue.stored:
            # This record deletes the queue: a start ignores the bindings and settles the remaining entries.
            self.broker.log.put(metadata.QUEUE, metadata.make_key(self.name, queue.name), None)
        owner = queue.lifetime.exclusive_owner
        if owner is not None:
            own = self.exclusive[owner]
            del own[queue]
            if not own:
                del self.exclusive[owner]
        self._remove_bindings_to(queue)
        self.topology_changed()
        self.dead_letters.forget(queue)
        queue.notify_senders(self.broker.jobs, f"queue '{queue.name}' in vhost '{self.name}' was deleted")
        return queue.delete(keep_pending)

    def transfer_exclusive(self, owner: object, heir: object) -> None:
        """Transfer the exclusive queues of a connection to another owner."""
        queues = self.exclusive.pop(owner, None)
        if queues:
            self.exclusive.setdefault(heir, {}).update(queues)
            for queue in queues:
                queue.lifetime.transfer(heir)
                queue.redefined()

    def remove_exclusive(self, owner: object, done: Callable[[], None] | None = None) -> None:
        """Remove the exclusive queues of a closed connection, then call `done`.

        A client that uses one of their names in the meantime finds that queue removed (`remove_orphan`).
        """
        if owner in self.exclusive:
            self.departed.add(owner)
        if self.broker.jobs.run_steps(self._removing_exclusive(owner), done, done) and done is not None:
            done()

    def _removing_exclusive(self, owner: object) -> Iterator[int]:
        queues = list(self.exclusive.get(owner, ()))
        queues.reverse()
        while queues:
            queue = queues.pop()  # so that they are freed one by one
            if queue.lifetime.exclusive_owner is owner:
                try:
                    self.remove_queue(queue)
                except Exception:  # the others must still be removed
                    logger.exception("cannot remove exclusive queue '%s' in vhost '%s'", queue.name, self.name)
            yield QUEUE_WORK
        self.departed.discard(owner)

    def remove_orphan(self, name: str) -> None:
        """Remove the queue of that name if it is exclusive to a closed connection."""
        queue = self.queues.get(name)
        if queue is not None and queue.lifetime.exclusive_owner in self.departed:
            self.remove_queue(queue)

    # Bindings

    def bind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: FieldTable,
        encoded: bytes = b"",
        default: bool = False,
    ) -> None:
        """Bind a queue or an exchange to an exchange (0-9-1 queue.bind, RabbitMQ's exchange.bind).

        Args:
            destination: The queue or exchange.
            exchange_name: The exchange to bind to.
            routing_key: The routing key.
            arguments: The arguments.
            encoded: The encoded arguments, if their types matter (`Binding.encoded`).
            default: As in `check_bindable`.
        """
        exchange = self._bindable(exchange_name, default)
        if destination is self.exchanges[CONTROL]:
            check_not_control(CONTROL)
        exchange.check_binding(routing_key, arguments)
        if self.broker.definitions_left >= 0 and not exchange.has(destination, routing_key, arguments):
            self.broker.check_definition(self, f"a binding to exchange '{exchange_name}'", arguments)
        is_first = destination not in exchange.by_destination
        if not exchange.bind(destination, routing_key, arguments, encoded):
            return
        self._note_binding(exchange, destination)
        self.topology_changed()
        if exchange.durable and destination.stored:
            self._keep_binding(exchange, destination, routing_key, arguments, encoded)
        if is_first:
            exchange.welcome(destination)

    def find_destination(self, kind: str, name: str) -> Destination | None:
        """Return a queue or an exchange by name, None if it does not exist. Queues are found as by `find_queue`."""
        return self.find_queue(name) if kind == "queue" else self.exchanges.get(name)

    def _named(self, kind: str, name: str) -> Destination | None:
        return self.queues.get(name) if kind == "queue" else self.exchanges.get(name)

    def _keep_binding(
        self, exchange: Exchange, destination: Destination, routing_key: str, arguments: FieldTable, encoded: bytes
    ) -> None:
        """Write a binding to the log."""
        record: Record = {"arguments": arguments, "source": exchange.id, "destination": destination.id}
        if encoded:
            record["encoded"] = encoded
        key = self._binding_key(exchange, destination, routing_key, arguments)
        self.broker.log.put(metadata.BINDING, key, metadata.pack(record))

    def unbind(
        self,
        destination: Destination,
        exchange_name: str,
        routing_key: str,
        arguments: FieldTable,
        default: bool = False,
    ) -> bool:
        """Remove a binding; return False if it does not exist."""
        exchange = self._bindable(exchange_name, default)
        if not self._unbind(exchange, destination, routing_key, arguments):
            if self.strict:
                raise NotFound(
                    f"no binding '{routing_key}' between exchange '{exchange_name}' and"
                    f" '{destination.name}' in vhost '{self.name}'"
                )
            return False
        self._auto_delete(exchange)
        return True

    def is_bound(self, queue: str, exchange: str, routing_key: str, arguments: FieldTable) -> bool:
        """Return whether a binding of a queue exists; False also if its queue or exchange does not."""
        destination = self.find_queue(queue)
        source = self.exchanges.get(exchange)
        return destination is not None and source is not None and source.has(destination, routing_key, arguments)

    def _bindable(self, name: str, default: bool) -> Exchange:
        self.check_bindable(name, default)
        return self.exchange(name)

    def check_bindable(self, name: str, default: bool = False) -> None:
        """Raise AccessRefused for an exchange whose bindings cannot be changed.

        `default` allows the default exchange (0-9 exchange.default-exchange), as strict mode does (0-9-1
        queue.bind.exchange.default-exchange).
        """
        if not (name or default or self.strict):
            raise AccessRefused("operation not permitted on the default exchange (compat.strict allows it)")
        check_not_control(name)

    def _unbind(self, exchange: Exchange, destination: Destination, routing_key: str, arguments: FieldTable) -> bool:
        if not exchange.unbind(destination, routing_key, arguments):
            return False
        if destination not in exchange.by_destination:
            self._forget_source(exchange, destination)
        if exchange.durable and destination.stored:
            self.broker.log.put(metadata.BINDING, self._binding_key(exchange, destination, routing_key, arguments), None)
        self.topology_changed()
        return True

    def _remove_bindings_to(self, destination: Destination) -> None:
        key = (destination.kind, destination.name)
        sources = self.sources.pop(key, None)
        if sources is None:
            return
        self.broker.jobs.removals.add(self._removing_bindings_of_destination(sources, destination))
        self.topology_changed()

    def _removing_bindings_of_destination(self, sources: dict[str, Exchange], destination: Destination) -> Iterator[int]:
        """Remove the bindings to a deleted destination."""
        for exchange in sources.values():
            own = exchange.unbind_destination(destination)
            yield from logged(self._removing_bindings_to_one(exchange, destination, own))
            self._auto_delete(exchange)
            yield 1
        self.topology_changed()

    def _auto_delete(self, exchange: Exchange) -> None:
        if exchange.auto_delete and self.exchanges.get(exchange.name) is exchange and not exchange.by_destination:
            self._remove_exchange(exchange)

    def _note_binding(self, exchange: Exchange, destination: Destination) -> None:
        key = (destination.kind, destination.name)
        self.sources.setdefault(key, {})[exchange.name] = exchange

    def _forget_source(self, exchange: Exchange, destination: Destination) -> None:
        """Forget an exchange after its last binding to a destination was removed."""
        key = (destination.kind, destination.name)
        sources = self.sources.get(key)
        if sources is not None and sources.get(exchange.name) is exchange:
            del sources[exchange.name]
            if not sources:
                del self.sources[key]

    def _binding_key(self, exchange: Exchange, destination: Destination, routing_key: str, arguments: FieldTable) -> str:
        packed = base64.b64encode(metadata.pack_key(arguments)).decode() if arguments else ""
        return metadata.make_key(self.name, exchange.name, destination.kind, destination.name, routing_key, packed)

    def bindings(self) -> list[tuple[Exchange, Binding]]:
        """Return all bindings except the implicit ones of the default exchange."""
        return list(self.each_binding())

    def each_binding(self) -> Iterator[tuple[Exchange, Binding]]:
        """Yield these bindings one by one; bindings may change in the meantime."""
        for exchange in list(self.exchanges.values()):
            for destination in list(exchange.by_destination):
                for binding in exchange.bindings_to(destination):
                    yield exchange, binding

    # Recovery

    def restore(
        self, kind: str, names: list[str], value: Record, recovery: Recovery, leases: Restoring, streams: StreamRecords
    ) -> None:
        """Rebuild one definition from the log; bindings are restored by `restore_binding`."""
        if kind == metadata.PARAMETER:
            self.parameters.restore(names[0], names[1], value)
        elif kind in (metadata.POLICY, metadata.OPERATOR_POLICY):
            self.policies.restore(kind, names[0], value)
        elif kind == metadata.EXCHANGE:
            exchange = make_exchange(
                value["type"],
                names[0],
                durable=True,
                auto_delete=value["auto_delete"],
                internal=value["internal"],
                arguments=value["arguments"],
            )
            exchange.id = value.get("number", 0)
            exchange.attach(self)
            if exchange.name != CONTROL:  # was not reserved in earlier versions
                self.exchanges[names[0]] = exchange
        elif kind == metadata.QUEUE:
            arguments = value["arguments"] or NO_ARGUMENTS
            settings = parse_queue_arguments(
                arguments, durable=True, exclusive=False, auto_delete=value["auto_delete"], strict=False
            )
            queue = make_queue(
                QueueDefinition(self, value["id"], names[0], True, None, value["auto_delete"], arguments, settings)
            )
            queue.recover(value, recovery, leases, streams)
            self.queues[names[0]] = queue
            self.queue_list.add(queue)
        elif kind == metadata.PENDING_DEAD_LETTERS:
            settings = parse_queue_arguments(
                value["arguments"], durable=True, exclusive=False, auto_delete=False, strict=False
            )
            settings = QueueSettings(settings.given, settings.unknown, settings.defaults)
            settings.dead_letter_exchange = value["exchange"]
            settings.dead_letter_routing_key = value["routing_key"]
            pending = ClassicQueue(
                QueueDefinition(self, value["id"], value["name"], True, arguments=value["arguments"], settings=settings)
            )
            pending.recover_deleted(recovery, leases, streams)
            self.pending_dead_letters.restore(pending)
        elif kind == metadata.SINK_TRANSACTION:
            self.sink_transactions.restore_sink_transaction(names[0], value, recovery)
        elif kind == metadata.SINK_APP:
            self.sink_transactions.restore_app(names[0], value)

    def restore_binding(self, names: list[str], value: Record, by_name: bool) -> bool:
        """Restore a binding from the log.

        Returns False for a remaining binding of a deleted object: an end of it does not exist, or is a new object with
        the same name. With `by_name`, because definitions were lost, only names are compared.
        """
        exchange_name, destination_kind, destination_name, routing_key = names[:4]
        source = self.exchanges.get(exchange_name)
        destination = self._named(destination_kind, destination_name)
        if source is None:
            return False
        arguments = value["arguments"]
        if destination is not None:
            known = "source" in value  # earlier versions had no numbers
            equal = value.get("source") == source.id and value.get("destination") == destination.id
            if equal or by_name or not known:
                encoded = value.get("encoded", b"")
                source.bind(destination, routing_key, arguments, encoded)
                self._note_binding(source, destination)
                if not equal:
                    self.unnumbered.append((source, destination, routing_key, arguments, encoded))
                return True
        if not by_name:
            self.unbound[source] = None
        return False

    def finish_recovery(self) -> None:
        """Complete the recovery of definitions.

        Numbers definitions written by earlier versions, and removes auto-delete exchanges whose last binding was removed.
        """
        if not self.number:
            self.broker.number_vhost(self)
        self.policies.apply_restored()
        for exchange in self.exchanges.values():
            if exchange.durable and not exchange.id and not _is_predeclared(exchange):
                exchange.id = self.broker.new_queue_id()
                self._keep_exchange(exchange)
        for source, destination, routing_key, arguments, encoded in self.unnumbered:
            self._keep_binding(source, destination, routing_key, arguments, encoded)
        self.unnumbered = []
        for exchange in self.unbound:
            self._auto_delete(exchange)
        self.unbound = {}

    # Checks

    def _check_new_name(self, kind: str, name: str) -> None:
        self.broker.check_name(kind, name)
        if self.strict and (len(name) > 127 or STRICT_NAME.fullmatch(name) is None):
            raise PreconditionFailed(
                f"{kind} name '{name}' may have up to 127 letters, digits, hyphens,"
                " underscores, periods and colons (compat.strict)"
            )
        if name.startswith("amq."):
            raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
        if kind == "exchange" and name.startswith(RESERVED):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix '{RESERVED}*'")

    def _check_same(self, kind: str, name: str, field: str, received: bool, current: bool) -> None:
        if received != current:
            raise PreconditionFailed(inequivalent(field, f"{kind} '{name}' in vhost '{self.name}'", received, current))

    def _check_arguments(self, kind: str, name: str, received: FieldTable, current: FieldTable) -> None:
        declared = QUEUE_ARGUMENTS if kind == "queue" else EXCHANGE_ARGUMENTS
        difference = equivalent(declared, current, received, f"{kind} '{name}' in vhost '{self.name}'")
        if difference is not None:
            raise PreconditionFailed(difference)


def _lower(limit: int, other: int) -> int:
    """Return the lower of two limits; a negative one means none."""
    if limit < 0 or other < 0:
        return max(limit, other, -1)
    return min(limit, other)


def _is_predeclared(exchange: Exchange) -> bool:
    """Return whether an exchange is created and deleted with its vhost."""
    return not exchange.name or exchange.name == CONTROL or exchange.name.startswith("amq.")

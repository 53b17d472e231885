"""Routing: from an exchange and a routing key to queues, with exchange-to-exchange bindings and alternate exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delay import HEADER, Delay, delay_of, unpublish
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.exchanges.control import CONTROL
from leveret.broker.message import Message
from leveret.broker.queues.exchange_keys import ExchangeKeys
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable

# Steps counted per exchange, and per additional key.
EXCHANGE_STEPS: Final = 7
KEY_STEPS: Final = 3
# Steps (as a power of two) that count as one unit of work.
STEPS_SHIFT: Final = 3

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.destination import Destination
    from leveret.broker.vhost import Vhost
    from leveret.broker.watches import ExchangeWatch


class Route:
    """The destinations of messages with one address.

    exchange  the exchange that they are published to
    queues    their queues, each once
    dynamic   whether each message goes through `Vhost.route_message`, because its queues depend on more than the address
              (headers, message id), or because of a watch
    depends   whether the queues depend on more than the address
    watch     observes the messages
    owner     the only user who may publish with it (to a sink transaction, whatever the routing key); "" for all users
    request   whether messages are requests to the broker, which alarms do not block, since they may end the alarm
    latest    the queues of the latest message
    delay     the delay of the latest message, if it is dynamic and delayed exchanges are on its way
    published  messages published to `queues` since the last `VhostStatistics.fold`
    """

    __slots__ = (
        "delay",
        "depends",
        "dynamic",
        "exchange",
        "exchange_name",
        "latest",
        "owner",
        "published",
        "queues",
        "request",
        "routing_key",
        "watch",
    )

    def __init__(
        self,
        exchange: Exchange,
        exchange_name: str,
        routing_key: str,
        queues: list[Queue],
        depends: bool,
        watch: ExchangeWatch | None,
        owner: str = "",
    ) -> None:
        self.exchange = exchange
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.queues = queues
        self.latest = queues
        self.delay: Delay | None = None
        self.depends = depends
        self.watch = watch
        self.owner = owner
        self.request = exchange_name == CONTROL
        self.dynamic = depends or watch is not None
        self.published = 0

    def take_published(self) -> int:
        """Return the number of messages since the last call."""
        count = self.published
        self.published = 0
        return count


def check_keys(broker: Broker, routing_keys: list[str]) -> list[str]:
    """Return the routing keys of a message (the key, then CC and BCC) without duplicates.

    Raises PreconditionFailed above `limits.routing_keys`.
    """
    keys = list(dict.fromkeys(routing_keys))
    if len(keys) > broker.max_routing_keys:
        raise PreconditionFailed(
            f"the message has {len(keys)} routing keys (its own, CC and BCC), at most"
            f" {broker.max_routing_keys} are allowed; the setting is limits.routing_keys"
        )
    return keys


def resolve(
    vhost: Vhost,
    exchange: Exchange,
    routing_keys: list[str],
    headers: FieldTable,
    message: Message | None,
    deduplicates: bool = True,
) -> list[Queue]:
    """Return the queues of a message published to `exchange` with these distinct routing keys (the key, then CC and BCC).

    Those that observe come last. `headers` and `message` matter only if `depends_on_message`. Without `deduplicates`,
    exchanges route duplicates, too, and note no keys. Raises PreconditionFailed above `limits.routing_steps` and
    `limits.routing_queues`.
    """
    broker = vhost.broker
    effort = Effort(broker.max_routing_steps)
    queues: dict[Queue, None] = {}
    keys: list[ExchangeKeys] | None = [] if deduplicates else None
    try:
        _resolve(vhost, [exchange], routing_keys, headers, message, effort, queues, None, keys)
    finally:
        broker.work += effort.steps >> STEPS_SHIFT
    return _checked(broker, queues, keys)


def is_unroutable(queues: list[Queue]) -> bool:
    """Return whether a message with these queues, as routed, is unroutable: it reaches none, or only those that observe."""
    return not queues or queues[0].observes


def destinations_of(queues: list[Queue]) -> list[Queue]:
    """Return the queues of a message, as routed, without those that observe."""
    if not queues or not queues[len(queues) - 1].observes:
        return queues
    return [queue for queue in queues if not queue.observes]


def resolve_delayed(
    vhost: Vhost,
    exchange: Exchange,
    routing_keys: list[str],
    headers: FieldTable,
    message: Message,
    deduplicates: bool = True,
) -> tuple[list[Queue], Delay | None]:
    """Return the queues of a message as `resolve`, and its delay if delayed exchanges are on its way.

    A queue that it reaches without a delayed exchange, too, gets it at once.
    """
    milliseconds = delay_of(headers) if HEADER in headers else 0
    if not milliseconds:
        return resolve(vhost, exchange, routing_keys, headers, message, deduplicates), None
    broker = vhost.broker
    effort = Effort(broker.max_routing_steps)
    queues: dict[Queue, None] = {}
    delaying: list[Exchange] = []
    keys: list[ExchangeKeys] | None = [] if deduplicates else None
    try:
        visited = _resolve(vhost, [exchange], routing_keys, headers, message, effort, queues, delaying, keys)
        at_once = len(queues)
        if delaying:
            _resolve(vhost, delaying, routing_keys, headers, message, effort, queues, None, keys, visited)
    finally:
        broker.work += effort.steps >> STEPS_SHIFT
    found = _checked(broker, queues, keys)
    if at_once == len(queues):
        return found, None
    return found, Delay(milliseconds, broker.timers.now() + milliseconds, list(queues)[at_once:])


def resolve_bound(
    vhost: Vhost, source: Exchange, destination: Destination, routing_key: str, headers: FieldTable, message: Message
) -> list[Queue]:
    """Return the queues that a message with this routing key reaches through a binding of `source` to `destination`.

    It does not pass `source` again. Raises PreconditionFailed as `resolve`.
    """
    broker = vhost.broker
    effort = Effort(broker.max_routing_steps)
    queues: dict[Queue, None] = {}
    waiting: list[Exchange] = []
    keys: list[ExchangeKeys] = []
    destination.reach(queues, waiting)
    try:
        _resolve(vhost, waiting, [routing_key], headers, message, effort, queues, None, keys, {source.name})
    finally:
        broker.work += effort.steps >> STEPS_SHIFT
    return _checked(broker, queues, keys)


def _checked(broker: Broker, queues: dict[Queue, None], keys: list[ExchangeKeys] | None) -> list[Queue]:
    """Return the queues of a message, with those that note its keys unless it is unroutable.

    Raises:
        PreconditionFailed: There are too many.
    """
    if len(queues) > broker.max_routing_queues:
        raise PreconditionFailed(
            f"the message goes to {len(queues)} queues, at most {broker.max_routing_queues} are"
            " allowed; the setting is limits.routing_queues"
        )
    found = list(queues)
    for index in range(len(found)):
        if found[index].observes:
            found = _observers_last(found)
            break
    if keys and not is_unroutable(found):
        found.extend(keys)
    return found


def _observers_last(queues: list[Queue]) -> list[Queue]:
    return [*[queue for queue in queues if not queue.observes], *[queue for queue in queues if queue.observes]]


def _resolve(
    vhost: Vhost,
    waiting: list[Exchange],
    routing_keys: list[str],
    headers: FieldTable,
    message: Message | None,
    effort: Effort,
    queues: dict[Queue, None],
    delaying: list[Exchange] | None,
    noting: list[ExchangeKeys] | None,
    visited: set[str] | None = None,
) -> set[str] | None:
    """Add the queues of a message to `queues`.

    Args:
        vhost: The vhost.
        waiting: The exchanges that route the message.
        routing_keys: Its routing keys.
        headers: Its headers.
        message: The message.
        effort: Counts the work.
        queues: The queues.
        delaying: Gets the delayed exchanges on the way, which then do not route the message.
        noting: Gets the keys of exchanges that route the message and drop duplicates; None to route duplicates, too.
        visited: The names of the exchanges that have routed it, None for none.

    Returns:
        The names of the exchanges that have routed it if there are several.
    """
    # A loop rather than recursion: chains of exchanges may have any length.
    while waiting:
        current = waiting.pop()
        if delaying is not None and current.delays:
            delaying.append(current)
            continue
        if visited is not None:
            if current.name in visited:
                continue
            visited.add(current.name)
        if current.keys is not None and noting is not None and message is not None:
            if current.keys.is_duplicate(message):
                queues[current.keys.duplicates] = None
                continue
            noting.append(current.keys)
        hashed = ""
        if current.needs_property and message is not None:
            hashed = vhost.broker.property_of(message, current.needs_property)
        matched = False
        keys = routing_keys if current.needs_key else routing_keys[:1]
        effort.spend(EXCHANGE_STEPS + KEY_STEPS * len(keys))
        for routing_key in keys:
            if not current.name:
                named = vhost.queues.get(routing_key)
                if named is not None:
                    matched = True
                    queues[named] = None
            for destination in current.match(routing_key, headers, hashed, effort):
                if destination.deleted:
                    continue  # its bindings are still being removed
                destination.reach(queues, waiting)
                matched = matched or not destination.observes
        # As in RabbitMQ, the alternate exchange gets a message only if none of its keys matched.
        if not matched and current.alternate is not None:
            alternate = vhost.exchanges.get(current.alternate)
            if alternate is not None:
                waiting.append(alternate)
        if visited is None and waiting:
            visited = {current.name}
    return visited


def depends_on_message(vhost: Vhost, exchange: Exchange) -> bool:
    """Return whether the queues of a message to this exchange depend on more than its address; cached per topology.

    Raises PreconditionFailed above `limits.routing_steps`.
    """
    known = vhost.depending.get(exchange.name)
    if known is None:
        effort = Effort(vhost.broker.max_routing_steps)
        try:
            known = _depends(vhost, exchange, effort)
        finally:
            vhost.broker.work += effort.steps >> STEPS_SHIFT
        vhost.depending[exchange.name] = known
    return known


def _depends(vhost: Vhost, exchange: Exchange, effort: Effort) -> bool:
    seen: set[str] = set()
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        if current.name in seen:
            continue
        seen.add(current.name)
        effort.spend(EXCHANGE_STEPS)
        if current.varies() or current.keys is not None:
            return True
        if current.alternate is not None:
            alternate = vhost.exchanges.get(current.alternate)
            if alternate is not None:
                waiting.append(alternate)
        waiting.extend(current.targets)
    return False


def push(route: Route, message: Message, queues: list[Queue], due: int = 0) -> Queue | None:
    """Append a message to the queues of its route, and return the last one that rejects it.

    Args:
        route: The route, which has routed the message before.
        message: The message.
        queues: The queues.
        due: Its delivery time, 0 for at once.
    """
    if route.delay is not None:
        return route.delay.push(message, queues, due)
    full: Queue | None = None
    for queue in queues:
        if not (queue.delay(message, due) if due else queue.push(message)):
            full = queue
    if full is not None:
        unpublish(message, queues)
    return full


def are_behind(queues: list[Queue]) -> bool:
    """Return whether messages wait for the broker in every one of these queues that has consumers."""
    behind = False
    for queue in queues:
        if queue.is_behind():
            behind = True
        elif len(queue.consumers):
            return False
    return behind


def are_starving(queues: list[Queue]) -> bool:
    """Return whether consumers of one of these queues wait until messages are read from disk."""
    return any(queue.is_starving() for queue in queues)

"""From an exchange and a routing key to queues: exchange-to-exchange bindings, alternate exchanges, each queue once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.control import CONTROL
from leveret.broker.message import Message
from leveret.broker.queues.base import Queue

if TYPE_CHECKING:
    from leveret.broker.events import ExchangeWatch
    from leveret.broker.vhost import Vhost


class Route:
    """Where messages with one address go.

    exchange  that they were published to
    queues    that get them, each once
    dynamic   each message goes through `Vhost.route_message`: its queues depend on more than the address (headers,
              message id), or somebody watches
    depends   that they depend on more than the address
    watch     who wants to know of its messages
    owner     only this user may publish by it, to a stage, whatever keys the message has; "" for everybody
    request   messages are requests to the broker, which alarms do not hold back: they may be what ends them
    """

    __slots__ = ("depends", "dynamic", "exchange", "exchange_name", "owner", "queues", "request", "routing_key", "watch")

    def __init__(self, exchange: Exchange, exchange_name: str, routing_key: str, queues: list[Queue],
                 depends: bool, watch: ExchangeWatch | None, owner: str = "") -> None:
        self.exchange = exchange
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.queues = queues
        self.depends = depends
        self.watch = watch
        self.owner = owner
        self.request = exchange_name == CONTROL
        self.dynamic = depends or watch is not None


def resolve(vhost: Vhost, exchange: Exchange, routing_keys: list[str], headers: dict[str, Any],
            message: Message | None) -> list[Queue]:
    """The queues for a message published to `exchange` with these routing keys (the key, then CC and BCC).

    `headers` and `message` matter only where `depends_on_message`.
    """
    queues: dict[Queue, None] = {}
    visited: set[str] = set()
    # A loop rather than recursion: chains of exchanges may be as long as their owners like.
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        if current.name in visited:
            continue
        visited.add(current.name)
        hashed = ""
        if current.needs_property and message is not None:
            hashed = vhost.broker.property_of(message, current.needs_property)
        matched = False
        for routing_key in routing_keys:
            if not current.name:
                named = vhost.queues.get(routing_key)
                if named is not None:
                    matched = True
                    queues[named] = None
            for destination in current.match(routing_key, headers, hashed):
                matched = True
                if isinstance(destination, Queue):
                    queues[destination] = None
                else:
                    waiting.append(destination)
        # The alternate gets what the exchange could not route at all, whatever its keys (RabbitMQ's).
        if not matched and current.alternate is not None:
            alternate = vhost.exchanges.get(current.alternate)
            if alternate is not None:
                waiting.append(alternate)
    return list(queues)


def depends_on_message(vhost: Vhost, exchange: Exchange) -> bool:
    """Whether any exchange that can be reached from this one looks at more than the address."""
    seen: set[str] = set()
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        if current.name in seen:
            continue
        seen.add(current.name)
        if current.needs_headers or current.needs_property:
            return True
        if current.alternate is not None:
            alternate = vhost.exchanges.get(current.alternate)
            if alternate is not None:
                waiting.append(alternate)
        waiting.extend(vhost.exchange_targets.get(current.name, {}).values())
    return False

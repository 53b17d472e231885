"""Extensions of Qpid: exchange.bound and exchange.query, class binding, class execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.exchanges.base import Binding, Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable, freeze
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.methods.queue import find
from leveret.protocols.amqp09.realms import PASSIVE
from leveret.wire.amqp0.values import Arguments

# Reply codes of exchange.bound-ok, as in Qpid.
OK: Final = 0
EXCHANGE_NOT_FOUND: Final = 1
QUEUE_NOT_FOUND: Final = 2
NO_BINDINGS: Final = 3
QUEUE_NOT_BOUND: Final = 4
NO_QUEUE_BOUND_WITH_KEY: Final = 5
QUEUE_NOT_BOUND_WITH_KEY: Final = 6


def bound(channel: Channel, exchange: str, routing_key: str, queue: str) -> None:
    """Perform exchange.bound. It needs no ticket, because it reveals no more than a passive declaration."""
    code, text = _bound(channel, exchange, routing_key, queue)
    channel.connection.engine.send(channel.number, "exchange.bound-ok", {"reply_code": code, "reply_text": text})


def _bound(channel: Channel, exchange: str, routing_key: str, queue: str) -> tuple[int, str]:
    """Return the reply code and text for a query."""
    source = channel.vhost.exchanges.get(exchange)
    if source is None:
        return EXCHANGE_NOT_FOUND, f"exchange '{exchange}' not found"
    found = _find(channel, queue)
    if queue and found is None:
        return QUEUE_NOT_FOUND, f"queue '{queue}' not found"
    if _has(channel, source, found, routing_key, {}):
        return OK, ""
    if found is None:
        if not routing_key:
            return NO_BINDINGS, f"exchange '{exchange}' has no bindings"
        return NO_QUEUE_BOUND_WITH_KEY, f"no queue is bound with routing key '{routing_key}' to exchange '{exchange}'"
    if not routing_key:
        return QUEUE_NOT_BOUND, f"queue '{queue}' is not bound to exchange '{exchange}'"
    return (
        QUEUE_NOT_BOUND_WITH_KEY,
        f"queue '{queue}' is not bound with routing key '{routing_key}' to exchange '{exchange}'",
    )


def query(channel: Channel, ticket: int, exchange: str) -> None:
    """Perform exchange.query."""
    channel.tickets.check(ticket, PASSIVE, exchange)
    found = channel.vhost.exchanges.get(exchange)
    answer: Arguments = {"not_found": True}
    if found is not None:
        answer = {"type": found.type, "durable": found.durable, "arguments": found.arguments}
    channel.connection.engine.send(channel.number, "exchange.query-ok", answer)


def binding_query(
    channel: Channel, ticket: int, exchange: str, queue: str, routing_key: str, arguments: FieldTable
) -> None:
    """Perform binding.query: report whether a binding matches all given fields, or which fields no binding matches."""
    channel.tickets.check(ticket, PASSIVE, exchange)
    if queue:
        channel.tickets.check(ticket, PASSIVE, queue)
    source = channel.vhost.exchanges.get(exchange)
    found = _find(channel, queue)
    answer: Arguments = {"exchange_not_found": source is None, "queue_not_found": bool(queue) and found is None}
    if source is not None and not answer["queue_not_found"] and not _has(channel, source, found, routing_key, arguments):
        answer["queue_not_matched"] = found is not None and not _has(channel, source, found, "", {})
        answer["key_not_matched"] = bool(routing_key) and not _has(channel, source, None, routing_key, {})
        answer["args_not_matched"] = bool(arguments) and not _has(channel, source, None, "", arguments)
    channel.connection.engine.send(channel.number, "binding.query-ok", answer)


def _find(channel: Channel, queue: str) -> Queue | None:
    return find(channel, queue) if channel.vhost.find_queue(queue) is not None else None


def _has(channel: Channel, exchange: Exchange, queue: Queue | None, routing_key: str, arguments: FieldTable) -> bool:
    """Return whether the exchange has a binding with the given queue, key and arguments; empty ones match all."""
    if not exchange.name and not arguments:
        # The default exchange binds every queue by its name.
        if queue is not None:
            if routing_key in ("", queue.name):
                return True
        elif channel.vhost.find_queue(routing_key) is not None if routing_key else channel.vhost.queues:
            return True
    if queue is not None:
        return any(_matches(binding, routing_key, arguments) for binding in exchange.bindings_to(queue))
    return any(
        _matches(binding, routing_key, arguments) for own in exchange.by_destination.values() for binding in own.values()
    )


def _matches(binding: Binding, routing_key: str, arguments: FieldTable) -> bool:
    return (not routing_key or binding.routing_key == routing_key) and (
        not arguments or bool(freeze(binding.arguments) == freeze(arguments))
    )


def flush(channel: Channel) -> None:
    """Ignore execution.flush: all earlier methods have been performed."""


def complete(channel: Channel, mark: int) -> None:
    """Ignore execution.complete, the client's progress."""


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "exchange.bound": bound,
    "exchange.query": query,
    "binding.query": binding_query,
    "execution.flush": flush,
    "execution.complete": complete,
}

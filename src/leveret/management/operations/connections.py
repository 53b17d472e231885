"""Connections, channels, transactions and consumers: list; close connections, cancel consumers."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.broker.consumer import Consumer
from leveret.broker.errors import NotFound
from leveret.broker.queues.queue import Queue
from leveret.management.descriptions import (
    ChannelInfo,
    ConnectionInfo,
    SessionInfo,
    SessionLinkInfo,
    TransactionInfo,
    number_of,
)
from leveret.management.json_values import ClientTable
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import InVhost, Reply, Request


class Close(Request, kw_only=True):
    """Request to close a connection. `number` is its number in `connections.list`."""

    number: int
    reason: str = "closed by the operator"


class CloseUser(Request, kw_only=True):
    user: str
    reason: str = "closed by the operator"


class OfConnection(Request, kw_only=True):
    """Request about a connection, by its number in `connections.list`."""

    number: int


class Throttling(Reply, kw_only=True):
    """Why the broker does not read from a connection, or reads less.

    Attributes:
        reasons: `alarm`; `commit` while too many bytes are uncommitted; `output` while the client does not read; `backlog`
            while commands of a channel wait for a slow one; `login`; `turn` for input that waits for the next turn;
            `behind` while the broker reads less, or grants no link credit, because messages wait for the broker itself.
        alarm: The alarm of the node that blocks publishers, or "".
    """

    reasons: list[str]
    alarm: str


class ListConsumers(InVhost, kw_only=True):
    """Request to list consumers, of one queue if `queue` is set."""

    queue: str | None = None


class ConsumerInfo(Reply, kw_only=True):
    """A consumer. Internal consumers, such as that of direct reply-to, have no `connection`.

    Attributes:
        single_active: Whether it is the single active consumer of its queue.
        oldest_unacked_age: Minimum age of its oldest unacked message in seconds; None if nothing is unacked. The HTTP
            process has the broker determine it once a second.
        timeout: Maximum time that a delivery may stay unacknowledged, in milliseconds; 0 for no limit.
    """

    vhost: str
    queue: str
    tag: str
    connection: int | None
    channel: int | None
    no_ack: bool
    exclusive: bool
    active: bool
    single_active: bool
    priority: int
    unacked: int
    oldest_unacked_age: int | None
    prefetch: int
    timeout: int
    arguments: ClientTable


class Cancel(Request, kw_only=True):
    """Request to cancel consumers of a queue: those with this tag, of one connection and channel if these are set."""

    vhost: str = "/"
    queue: str
    tag: str
    connection: int | None = None
    channel: int | None = None


class Cancelled(Reply, kw_only=True):
    """The number of cancelled consumers."""

    consumers: int


class Closed(Reply, kw_only=True):
    """The number of closed connections."""

    connections: int


def list_connections(context: Context, request: InVhost) -> Iterator[ConnectionInfo | None]:
    """List connections."""
    for session in list(context.managed.sessions()):
        item = session.describe()
        yield item if request.vhost in (None, item.vhost) else None


def list_channels(context: Context, request: InVhost) -> Iterator[ChannelInfo | None]:
    """List channels."""
    for session in list(context.managed.sessions()):
        if request.vhost in (None, session.describe().vhost):
            yield from session.describe_channels()
        yield None


def list_transactions(context: Context, request: InVhost) -> Iterator[TransactionInfo | None]:
    """List open transactions with publishes or settlements, and all those of AMQP 1.0."""
    for session in list(context.managed.sessions()):
        if request.vhost in (None, session.describe().vhost):
            yield from session.describe_transactions()
        yield None


def list_sessions(context: Context, request: OfConnection) -> Iterator[SessionInfo]:
    """List the sessions of a connection of AMQP 1.0."""
    return iter(context.managed.session(request.number).describe_sessions())


def list_session_links(context: Context, request: OfConnection) -> Iterator[SessionLinkInfo]:
    """List the links of the sessions of a connection of AMQP 1.0."""
    return iter(context.managed.session(request.number).describe_links())


def throttling(context: Context, request: OfConnection) -> Throttling:
    """Return why the broker does not read from a connection, or reads less."""
    ingress = getattr(context.managed.session(request.number), "ingress", None)
    return Throttling(reasons=[] if ingress is None else ingress.reasons_shown(), alarm=context.managed.alarm())


def list_consumers(context: Context, request: ListConsumers) -> Iterator[ConsumerInfo | None]:
    """List consumers."""
    for vhost in context.vhosts(request.vhost):
        if request.queue is not None:
            found = vhost.find_queue(request.queue)
            yield from () if found is None else _describe_consumers(context, found)
            continue
        for queue in vhost.queue_list.walk():
            yield from _describe_consumers(context, queue)
            yield None


def _describe_consumers(context: Context, queue: Queue) -> Iterator[ConsumerInfo]:
    timeout = queue.settings.consumer_timeout
    if timeout is None:
        timeout = round(context.managed.vhost_config(queue.vhost.name).consumer_timeout * 1000)
    for consumer in list(queue.consumers):
        own = consumer.arguments.get("x-consumer-timeout")
        yield _describe_consumer(context, consumer, own if isinstance(own, int) else timeout)


def _describe_consumer(context: Context, consumer: Consumer, timeout: int) -> ConsumerInfo:
    return ConsumerInfo(
        vhost=consumer.queue.vhost.name,
        queue=consumer.queue.name,
        tag=consumer.tag,
        connection=number_of(consumer.owner),
        channel=number_of(consumer.channel),
        no_ack=consumer.no_ack,
        exclusive=consumer.exclusive,
        active=consumer.active,
        single_active=consumer.queue.consumers.single_active and consumer.active,
        priority=consumer.priority,
        unacked=consumer.unacked,
        oldest_unacked_age=context.managed.unacked_ages.age_of(consumer, context.broker.timers.now()),
        prefetch=getattr(consumer, "prefetch", 0),
        timeout=timeout,
        arguments=ClientTable(consumer.arguments),
    )


def close(context: Context, request: Close) -> None:
    """Close a connection."""
    context.managed.session(request.number).shut_down(request.reason)


def close_user(context: Context, request: CloseUser) -> Closed:
    """Close all connections of a user and return their number."""
    return Closed(connections=close_all(context, request.user, request.reason))


def close_all(context: Context, user: str, reason: str) -> int:
    """Close all connections of a user and return their number."""
    own = [session for session in list(context.managed.sessions()) if session.describe().user == user]
    for session in own:
        session.shut_down(reason)
    return len(own)


def cancel(context: Context, request: Cancel) -> Cancelled:
    """Cancel consumers of any client. Their unacked messages stay with their clients."""
    queue = context.vhost(request.vhost).find_queue(request.queue)
    if queue is None:
        raise NotFound(f"no queue '{request.queue}' in vhost '{request.vhost}'")
    found = [consumer for consumer in queue.consumers if consumer.tag == request.tag and _is_of(consumer, request)]
    if not found:
        raise NotFound(f"no consumer '{request.tag}' of queue '{request.queue}' in vhost '{request.vhost}'")
    for consumer in found:
        queue.remove_consumer(consumer)
        consumer.cancelled(f"the consumer of queue '{request.queue}' was cancelled by an operator")
    return Cancelled(consumers=len(found))


def _is_of(consumer: Consumer, request: Cancel) -> bool:
    connection, channel = number_of(consumer.owner), number_of(consumer.channel)
    return request.connection in (None, connection) and request.channel in (None, channel)


OPERATIONS: Operations = {
    "connections.list": Operation(list_connections, InVhost, ConnectionInfo, early=True),
    "connections.close": Operation(close, Close, changes=True, early=True),
    "connections.close_user": Operation(close_user, CloseUser, Closed, changes=True, early=True),
    "connections.throttling": Operation(throttling, OfConnection, Throttling),
    "connections.sessions": Operation(list_sessions, OfConnection, SessionInfo),
    "connections.links": Operation(list_session_links, OfConnection, SessionLinkInfo),
    "channels.list": Operation(list_channels, InVhost, ChannelInfo),
    "transactions.list": Operation(list_transactions, InVhost, TransactionInfo),
    "consumers.list": Operation(list_consumers, ListConsumers, ConsumerInfo),
    "consumers.cancel": Operation(cancel, Cancel, Cancelled, changes=True),
}

"""Queues: list, show, add, delete, purge; `queue.describe`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType, field

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.policies import effective_definition
from leveret.broker.queues.queue import Queue
from leveret.broker.statistics import QUEUE_GAUGES
from leveret.management.descriptions import number_of
from leveret.management.json_values import ClientTable
from leveret.management.operations.operation import (
    EACH,
    Context,
    Operation,
    Operations,
    Right,
    VhostContext,
    VhostOperation,
    VhostOperations,
    check,
)
from leveret.management.operations.policies import name_of
from leveret.management.operations.typed_arguments import encoded_arguments, typed_arguments
from leveret.management.structs import Arguments, InVhost, Messages, NamedInVhost, Reply, Request, check_arguments


class List(InVhost, kw_only=True):
    """Request to list queues. `encoded` includes the types of their arguments that JSON lacks."""

    encoded: bool = False


class Add(NamedInVhost, kw_only=True):
    """Request to declare a queue. `encoded` has the fields of the arguments as in `QueueInfo`, "" for none."""

    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    encoded: str = ""

    def __post_init__(self) -> None:
        check_arguments(self.arguments)


class Delete(NamedInVhost, kw_only=True):
    if_unused: bool = False
    if_empty: bool = False


class Describe(Request, kw_only=True):
    queue: str


class QueueInfo(Reply, kw_only=True):
    """A queue with its statistics and the policies that apply to it. Bytes are those of message bodies.

    Attributes:
        type: The queue type.
        owner: The number of the connection that an exclusive queue belongs to.
        active_consumer: The tag of the single active consumer, "" for none.
        exclusive_consumer: The tag of the exclusive consumer, "" for none.
        unacked: Unacked messages. Those of a stream stay in it, and are ready, too.
        unacked_bytes: Bytes of the unacked messages; 0 for a stream.
        persistent: Messages that are kept on disk.
        paged: Messages of which only the positions are in memory.
        memory: Bytes that the other messages use in memory.
        blocked_since: When all consumers have become unable to take a message, for lack of credit or because their sockets
            are full, in milliseconds of Unix time; 0 if one is able to, or there is none.
        blocked_time: Milliseconds in which it was so, without the present time.
        temporary: Whether it ends with its connection, its last consumer or its AMQP 1.0 link.
        paused: Whether an operator has stopped deliveries.
        delivered: Deliveries, with those that need no acknowledgement and with replies to basic.get.
        settled: Entries that were acknowledged or removed otherwise.
        oldest_ready_age: Minimum age of the oldest ready message in seconds; None if nothing is ready, and for streams. The
            HTTP process must run.
        deduplicates: Whether it drops duplicates.
        deduplication_keys: The number of keys for that; some of them may have expired.
        dropped_duplicates: Messages that it has dropped as duplicates since the broker started.
        head_timestamp: The property `timestamp` of the next message to be delivered, in seconds; None without one.
        encoded: The fields of the arguments in AMQP 0-9-1, in base64, if JSON lacks their types and the request asks for
            them.
    """

    vhost: str
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: ClientTable
    ready: int
    delayed: int
    retrying: int
    unacked: int
    leased: int
    ready_bytes: int
    delayed_bytes: int
    leased_bytes: int
    unacked_bytes: int
    persistent: int
    persistent_bytes: int
    paged: int
    paged_bytes: int
    memory: int
    consumers: int
    blocked_since: int
    blocked_time: int
    published: int
    delivered: int
    settled: int
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: ClientTable
    type: str
    owner: int | None
    active_consumer: str
    exclusive_consumer: str
    temporary: bool
    delivered_no_ack: int
    redelivered: int
    got: int
    got_no_ack: int
    got_empty: int
    acked: int
    paused: bool
    deduplicates: bool
    deduplication_keys: int
    dropped_duplicates: int
    oldest_ready_age: int | None = None
    head_timestamp: int | None = None
    encoded: str | UnsetType = UNSET


class QueueType(Reply, kw_only=True):
    """The type of a queue, its `messages` (for a stream, the retained ones), and its `leased` messages."""

    type: str
    durable: bool
    messages: int
    leased: int


def describe(queue: Queue) -> QueueInfo:
    """Return the statistics of a queue."""
    active, exclusive = consumer_tags(queue)
    blocked_time, blocked_since = queue.consumers.blocked()
    counters = queue.counters
    return QueueInfo(
        **dict(zip(QUEUE_GAUGES, queue.gauges(), strict=True)),
        vhost=queue.vhost.name,
        name=queue.name,
        durable=queue.durable,
        exclusive=queue.lifetime.exclusive_owner is not None,
        auto_delete=queue.lifetime.auto_delete,
        arguments=ClientTable(queue.arguments),
        retrying=queue.retrying_count,
        blocked_since=blocked_since,
        blocked_time=blocked_time,
        published=counters.published,
        delivered=counters.delivered,
        settled=counters.settled,
        policy=name_of(queue.policy),
        operator_policy=name_of(queue.operator_policy),
        effective_policy_definition=ClientTable(effective_definition(queue)),
        type=queue.settings.type,
        owner=number_of(queue.lifetime.exclusive_owner),
        active_consumer=active,
        exclusive_consumer=exclusive,
        temporary=queue.lifetime.temporary,
        delivered_no_ack=counters.delivered_no_ack,
        redelivered=counters.redelivered,
        got=counters.gets - counters.gets_no_ack,
        got_no_ack=counters.gets_no_ack,
        got_empty=counters.gets_empty,
        acked=counters.acked,
        paused=queue.paused,
        deduplicates=queue.deduplication is not None,
        encoded=UNSET,
    )


def consumer_tags(queue: Queue) -> tuple[str, str]:
    """Return the tags of the single active and of the exclusive consumer, "" for none."""
    consumers = queue.consumers
    active = consumers.active_consumer if consumers.single_active else None
    exclusive = consumers.exclusive_consumer
    return "" if active is None else active.tag, "" if exclusive is None else exclusive.tag


def _find(context: Context, request: NamedInVhost) -> Queue:
    queue = context.vhost(request.vhost).find_queue(request.name)
    if queue is None:
        raise NotFound(f"no queue '{request.name}' in vhost '{request.vhost}'")
    return queue


def _describe_all(context: Context, queue: Queue, encoded: bool = False) -> QueueInfo:
    """Return the statistics of a queue, with its first ready messages, and the types of its arguments if wanted."""
    found, ages = describe(queue), context.managed.ready_ages
    found.oldest_ready_age = ages.age_of(queue)
    found.head_timestamp = ages.timestamp_of(queue)
    if encoded:
        found.encoded = encoded_arguments(context, queue.arguments)
    return found


def list_queues(context: Context, request: List) -> Iterator[QueueInfo]:
    """List queues."""
    found = (queue for vhost in context.vhosts(request.vhost) for queue in vhost.queue_list.walk())
    return (_describe_all(context, queue, request.encoded) for queue in found)


def show(context: Context, request: NamedInVhost) -> QueueInfo:
    """Return a queue."""
    return _describe_all(context, _find(context, request))


def add(context: Context, request: Add) -> QueueInfo:
    """Declare a queue, as a client does. Succeeds if an equivalent queue exists."""
    vhost = context.vhost(request.vhost)
    if not request.name:
        raise PreconditionFailed("the queue name is empty; expected 1 to 255 bytes")
    arguments, _ = typed_arguments(context, request.arguments, request.encoded)
    queue = vhost.declare_queue(
        request.name, None, durable=request.durable, auto_delete=request.auto_delete, arguments=arguments
    )
    return describe(queue)


def delete(context: Context, request: Delete) -> Messages:
    """Delete a queue, even an exclusive one, and return its number of ready messages."""
    queue = _find(context, request)
    if request.if_unused and queue.consumers.is_consumed():
        raise PreconditionFailed(f"queue '{request.name}' has {len(queue.consumers)} consumers")
    count = queue.ready_count + queue.delayed_count + queue.unacked + queue.leased_count
    if request.if_empty and count:
        raise PreconditionFailed(f"queue '{request.name}' has {count} messages")
    return Messages(messages=queue.vhost.remove_queue(queue))


def purge(context: Context, request: NamedInVhost) -> Messages:
    """Remove the ready messages of a queue and return their number. Unacked messages stay."""
    return Messages(messages=_find(context, request).purge())


def pause(context: Context, request: NamedInVhost) -> None:
    """Stop deliveries from a queue, also after a restart. Publishes continue."""
    queue = _find_configurable(context, request)
    if not queue.paused:
        queue.set_paused(True)


def resume(context: Context, request: NamedInVhost) -> None:
    """Deliver from a queue again."""
    queue = _find_configurable(context, request)
    if queue.paused:
        queue.set_paused(False)


def _find_configurable(context: Context, request: NamedInVhost) -> Queue:
    check(context, request.vhost, "configure", request.name)
    return _find(context, request)


def describe_type(context: VhostContext, request: Describe) -> QueueType:
    """Return the type of a queue and its number of messages."""
    queue = context.vhost.queue(request.queue, context.session)
    return QueueType(
        type=queue.settings.type,
        durable=queue.durable,
        messages=queue.ready_count + queue.delayed_count + queue.unacked,
        leased=queue.leased_count,
    )


OPERATIONS: Operations = {
    "queues.list": Operation(list_queues, List, QueueInfo),
    "queues.show": Operation(show, NamedInVhost, QueueInfo),
    "queues.add": Operation(add, Add, QueueInfo, changes=True),
    "queues.delete": Operation(delete, Delete, Messages, changes=True, removes=True),
    "queues.purge": Operation(purge, NamedInVhost, Messages, changes=True, removes=True),
    "queues.pause": Operation(pause, NamedInVhost, right=EACH, changes=True),
    "queues.resume": Operation(resume, NamedInVhost, right=EACH, changes=True),
}
VHOST_OPERATIONS: VhostOperations = {
    "queue.describe": VhostOperation(describe_type, Describe, QueueType, Right("read", "queue")),
}

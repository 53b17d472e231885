"""Queues in the management node.

PUT /queues/Q             201 if it is created, 200 if it exists with the same properties, both with the queue's map;
                          409 if the properties differ
GET /queues/Q             200 and the queue's map, or 404
DELETE /queues/Q          200 and the number of ready messages, 0 if the queue does not exist
DELETE /queues/Q/messages  200 and the number of purged messages, or 404
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import PreconditionFailed
from leveret.management.operations.definitions import (
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    QUEUE_SHOW,
    DeclareQueue,
    DeleteQueue,
    OneQueue,
    QueueDefinition,
)
from leveret.management.operations.operation import perform_now
from leveret.protocols.amqp10.management.messages import (
    Answer,
    Answered,
    Request,
    RequestRefused,
    context_of,
    fields_of,
    kinds_of,
    name_in,
    shown,
)
from leveret.protocols.convert.values import text_of
from leveret.wire.amqp10.values import Array, UInt, ULong

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession

FIELDS: Final[dict[str, type]] = kinds_of(DeclareQueue)


def declare(connection: VhostSession, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "a queue")
    if not name:
        raise RequestRefused(400, "the name of the queue is empty: expected /queues/NAME")
    wanted = DeclareQueue(name=name, **fields_of(request, "queue", FIELDS))
    existed = connection.vhost.find_queue(name) is not None
    try:
        found = perform_now(QUEUE_DECLARE, context_of(connection), wanted)
    except PreconditionFailed as error:
        raise RequestRefused(409 if existed else 400, str(error)) from None
    return Answer(200 if existed else 201, describe(connection, found), found.stored)


def show(connection: VhostSession, request: Request, quoted: str) -> Answer:
    wanted = OneQueue(name=name_in(quoted, "a queue"))
    return Answer(200, describe(connection, perform_now(QUEUE_SHOW, context_of(connection), wanted)))


def delete(connection: VhostSession, request: Request, quoted: str) -> Answer:
    wanted = DeleteQueue(name=name_in(quoted, "a queue"))
    reply = perform_now(QUEUE_DELETE, context_of(connection), wanted)
    return Answer(200, {"message_count": ULong(reply.messages)}, reply.stored, removed=True)


def purge(connection: VhostSession, request: Request, quoted: str) -> Answer:
    wanted = OneQueue(name=name_in(quoted, "a queue"))
    reply = perform_now(QUEUE_PURGE, context_of(connection), wanted)
    return Answer(200, {"message_count": ULong(reply.messages)}, reply.stored, removed=True)


def describe(connection: VhostSession, queue: QueueDefinition) -> Answered:
    """Return the map of a queue for responses. This broker is the only node and leads every queue."""
    node = connection.services.broker.node_name
    return {
        "name": text_of(queue.name),
        "vhost": queue.vhost,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "type": queue.type,
        "arguments": shown(queue.arguments.fields),
        "leader": node,
        "replicas": Array("string", [node]),
        "message_count": ULong(queue.messages),
        "consumer_count": UInt(queue.consumers),
    }

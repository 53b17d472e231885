"""Queues in the management node.

PUT /queues/Q             201 if it is created, 200 if it exists with the same properties, with its map; 409 if they differ
GET /queues/Q             200 and the queue's map, or 404
DELETE /queues/Q          200 and the number of ready messages, 0 if the queue does not exist
DELETE /queues/Q/messages  200 and the number of purged messages, or 404
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.protocols import definitions
from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused, fields_of, name_in, shown
from leveret.protocols.convert.values import text_of
from leveret.wire.amqp10.values import Array, UInt, ULong

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

FIELDS: Final[dict[str, type]] = {"durable": bool, "exclusive": bool, "auto_delete": bool, "arguments": dict}


def declare(connection: Connection, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "a queue")
    if not name:
        raise RequestRefused(400, "a queue without a name: expected /queues/NAME")
    fields = fields_of(request, "queue", FIELDS)
    existed = connection.vhost.find_queue(name) is not None
    try:
        found = definitions.declare_queue(
            connection, name, durable=fields.get("durable", True), exclusive=fields.get("exclusive", False),
            auto_delete=fields.get("auto_delete", False), arguments=fields.get("arguments", {}))
    except PreconditionFailed as error:
        raise RequestRefused(409 if existed else 400, str(error)) from None
    return Answer(200 if existed else 201, describe(connection, found), found.stored)


def show(connection: Connection, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "a queue")
    connection.check_any(name)
    found = connection.vhost.find_queue(name)
    if found is None:
        raise NotFound(f"no queue '{name}' in vhost '{connection.vhost_name}'")
    return Answer(200, describe(connection, found))


def delete(connection: Connection, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "a queue")
    if connection.vhost.find_queue(name) is None:
        connection.check("configure", name)
        return Answer(200, {"message_count": ULong(0)})  # also in strict mode
    count, stored = definitions.delete_queue(connection, name)
    return Answer(200, {"message_count": ULong(count)}, stored, removed=True)


def purge(connection: Connection, request: Request, quoted: str) -> Answer:
    count, stored = definitions.purge_queue(connection, name_in(quoted, "a queue"))
    return Answer(200, {"message_count": ULong(count)}, stored, removed=True)


def describe(connection: Connection, queue: Queue) -> dict[str, Any]:
    """Return the map of a queue for responses. The broker is the only node, and leads every queue."""
    queue.catch_up()
    node = connection.node_name
    return {
        "name": text_of(queue.name),
        "vhost": connection.vhost_name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner is not None,
        "type": queue.settings.type,
        "arguments": shown(queue.arguments),
        "leader": node,
        "replicas": Array("string", [node]),
        "message_count": ULong(queue.ready_count),
        "consumer_count": UInt(len(queue.consumers)),
    }

"""Queues."""

from __future__ import annotations

from leveret.management.http.connections import connections_by_number, consumer_row, peer_of
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request
from leveret.management.http.statistics import garbage_collection, message_stats, rate, with_rates


def queue_row(item: Row, node: str) -> Row:
    """Return a queue as lists show it."""
    ready = item["ready"] + item["delayed"] + item["leased"]
    unacked = item["unacked"]
    memory = item["memory"]
    return {
        "arguments": item["arguments"],
        "auto_delete": item["auto_delete"],
        "consumer_capacity": 1.0 if item["consumers"] and not ready else 0,
        "consumer_utilisation": 1.0 if item["consumers"] and not ready else 0,
        "consumers": item["consumers"],
        "durable": item["durable"],
        "effective_policy_definition": item["effective_policy_definition"],
        "exclusive": item["exclusive"],
        "exclusive_consumer_tag": None,
        "garbage_collection": garbage_collection(),
        "head_message_timestamp": None,
        "idle_since": None,
        "leader": node,
        "members": [node],
        "memory": memory,
        "message_bytes": item["ready_bytes"],
        "message_bytes_paged_out": 0,
        "message_bytes_persistent": item["ready_bytes"] if item["durable"] else 0,
        "message_bytes_ram": memory,
        "message_bytes_ready": item["ready_bytes"],
        "message_bytes_unacknowledged": 0,
        "message_stats": message_stats(
            publish=item["published"],
            deliver=item["delivered"],
            deliver_get=item["delivered"],
            ack=item["settled"],
        ),
        **with_rates({"messages": ready + unacked}),
        "messages_paged_out": 0,
        "messages_persistent": ready + unacked if item["durable"] else 0,
        "messages_ram": ready + unacked,
        **with_rates({"messages_ready": ready}),
        "messages_ready_ram": ready,
        **with_rates({"messages_unacknowledged": unacked}),
        "messages_unacknowledged_ram": unacked,
        "name": item["name"],
        "node": node,
        "online": [node],
        "operator_policy": item["operator_policy"],
        "policy": item["policy"],
        "recoverable_slaves": None,
        "reductions": 0,
        "reductions_details": rate(),
        "single_active_consumer_tag": item["active_consumer"] or None,
        "state": "running",
        "type": item["type"],
        "vhost": item["vhost"],
    }


async def rows(request: Request) -> list[Row]:
    """Return the queues that the user sees."""
    node, identity = request.settings.node, request.identity
    found = await request.snapshot.shown("queues.list", lambda item: queue_row(item, node))
    return found if identity.is_monitor() else [row for row in found if identity.sees(row["vhost"])]


async def list_all(request: Request) -> Answer:
    return Answer(body=select(await rows(request), request.query))


async def list_in_vhost(request: Request) -> Answer:
    found = [row for row in await rows(request) if row["vhost"] == request.vhost]
    return Answer(body=select(found, request.query))


async def show(request: Request) -> Answer:
    """Return a queue as it is now, with its consumers."""
    item = await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    row = queue_row(item, request.settings.node)
    consumers = []
    if item["consumers"] or item["owner"] is not None:
        connections = await connections_by_number(request)
        found = await request.control.call("consumers.list", {"vhost": request.vhost, "queue": request.name})
        consumers = [consumer_row(consumer, connections, request.settings.node) for consumer in found]
        if item["owner"] is not None:
            row["owner_pid_details"] = peer_of(connections.get(item["owner"]))
    row |= {"consumer_details": consumers, "deliveries": [], "incoming": []}
    return Answer(body=columns_of(row, request.query))


async def declare(request: Request) -> Answer:
    """Declare a queue. The answer says whether it is new."""
    existing = await request.find("queues.show", {"vhost": request.vhost, "name": request.name})
    await request.change_in_vhost(
        "queue.declare",
        {
            "name": request.name,
            "durable": request.flag("durable"),
            "auto_delete": request.flag("auto_delete"),
            "arguments": request.arguments(),
        },
    )
    return CREATED if existing is None else NO_CONTENT


async def delete(request: Request) -> Answer:
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    conditions = {"if_unused": request.asks_for("if-unused"), "if_empty": request.asks_for("if-empty")}
    await request.change_in_vhost("queue.delete", {"name": request.name, **conditions})
    return NO_CONTENT


async def purge(request: Request) -> Answer:
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    await request.change_in_vhost("queue.purge", {"name": request.name})
    return NO_CONTENT


async def act(request: Request) -> Answer:
    """Accept the actions of mirrored queues, which have no effect without mirrors."""
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    (action,) = request.required("action")
    if action not in ("sync", "cancel_sync"):
        raise bad_request(f"unknown action '{action}'; expected sync or cancel_sync")
    return NO_CONTENT


async def list_of_user(request: Request) -> Answer:
    """List the queues that a user declared exclusively; other queues have no owner."""
    users = await request.control.call("users.list")
    if request.path["user"] not in [user["name"] for user in users]:
        raise not_found()
    connections = await connections_by_number(request)
    owned = {number for number, connection in connections.items() if connection["user"] == request.path["user"]}
    node = request.settings.node
    found = [queue_row(item, node) for item in await request.snapshot.rows("queues.list") if item["owner"] in owned]
    return Answer(body=select(found, request.query))

"""Queues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from leveret.broker.queues.registry import QUEUE_ARGUMENTS
from leveret.management.http.connections import connections_by_number, consumer_row, peer_of
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.history_store import Subject
from leveret.management.http.lists import RowStream, Source, choose, columns_of, show_chosen, value_at
from leveret.management.http.measured import Measured, Rates, is_rate, rate_of
from leveret.management.http.objects import QUEUE_STATISTICS, CachedQueue
from leveret.management.http.request import NO_CONTENT, Answer, Request, declared
from leveret.management.http.samples import OlderSamples
from leveret.management.http.statistics import deduplication, garbage_collection, message_stats, queue_totals, with_rates
from leveret.management.json_values import ReplyValue

# Keys of a queue if statistics are disabled, and those of the number of messages.
_WITHOUT_STATISTICS: Final = (
    "arguments",
    "auto_delete",
    "durable",
    "exclusive",
    "leader",
    "members",
    "name",
    "node",
    "online",
    "policy",
    "state",
    "type",
    "vhost",
)
# A column of lists of queues that RabbitMQ does not have: only queries that name it get it.
OLDEST_READY_AGE: Final = "oldest_ready_age"
_TOTALS: Final = ("messages", "messages_ready", "messages_unacknowledged")
# Keys of rows whose values are those of the broker's answer.
_DIRECT = ("name", "vhost", "type", "durable", "auto_delete", "exclusive", "consumers", "memory")


def _ready(item: Row) -> int:
    return int(item["ready"] + item["delayed"] + item["leased"])


def _stats(item: Row) -> dict[str, int]:
    """Return the values of `message_stats` that are not always 0."""
    return {
        "publish": item["published"],
        "deliver": item["delivered"] - item["delivered_no_ack"] - item["got"] - item["got_no_ack"],
        "deliver_no_ack": item["delivered_no_ack"],
        "get": item["got"],
        "get_no_ack": item["got_no_ack"],
        "get_empty": item["got_empty"],
        "deliver_get": item["delivered"],
        "redeliver": item["redelivered"],
        "ack": item["acked"],
    }


def _subject(queue: CachedQueue) -> Subject:
    return Subject(queue.item["vhost"], queue.item["name"], queue.id)


def _rates(request: Request, sources: list[Measured], older: OlderSamples | None) -> Rates:
    return Rates(sources, QUEUE_STATISTICS, request.cache.tick, request.windows, older)


async def _older(request: Request, queues: Sequence[CachedQueue]) -> dict[Subject, OlderSamples]:
    """Return the samples of queues from before those in memory, if the query asks for them."""
    return await request.history.older([_subject(queue) for queue in queues], request.windows, request.cache)


def queue_row(item: Row, node: str, rates: Rates | None = None) -> Row:
    """Return a queue as lists show it."""
    ready = _ready(item)
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
        "head_message_timestamp": item["head_timestamp"],
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
        "message_stats": message_stats(_stats(item), rates),
        **queue_totals(ready, unacked, rates),
        "messages_paged_out": 0,
        "messages_persistent": ready + unacked if item["durable"] else 0,
        "messages_ram": ready + unacked,
        "messages_ready_ram": ready,
        "messages_unacknowledged_ram": unacked,
        "name": item["name"],
        "node": node,
        "online": [node],
        "operator_policy": item["operator_policy"],
        "policy": item["policy"],
        "recoverable_slaves": None,
        **with_rates({"reductions": 0}, rates),
        "single_active_consumer_tag": item["active_consumer"] or None,
        "state": "paused" if item["paused"] else "running",
        "type": item["type"],
        "vhost": item["vhost"],
        **_keys_of_type(item, node),
        **deduplication(item),
    }


def _keys_of_type(item: Row, node: str) -> Row:
    """Return the keys that only queues of this type have."""
    if item["type"] == "quorum":
        return {
            "message_bytes_dlx": 0,
            "messages_dlx": 0,
            "open_files": {node: 0},
            "single_active_consumer_ctag": item["active_consumer"] or None,
        }
    return {"readers": {node: item["consumers"]}} if item["type"] == "stream" else {}


def _reduced(request: Request, row: Row) -> Row:
    """Return the row of a queue without statistics if the query disables them."""
    if not request.asks_for("disable_stats"):
        return row
    names = _WITHOUT_STATISTICS + (_TOTALS if request.asks_for("enable_queue_totals") else ())
    return {name: row[name] for name in names}


async def visible(request: Request) -> list[CachedQueue]:
    """Return the queues that the user sees."""
    await request.cache.refresh()
    identity, found = request.identity, list(request.cache.queues.values())
    return found if identity.is_monitor() else [queue for queue in found if identity.sees(queue.item["vhost"])]


async def _select(request: Request, queues: list[CachedQueue]) -> RowStream | Row:
    node, cache, windows = request.settings.node, request.cache, request.windows
    request.check_listed_samples(len(queues))
    older: dict[Subject, OlderSamples] = {}
    has_age = OLDEST_READY_AGE in request.query.get("columns", "").split(",")

    def show(queue: CachedQueue) -> Row:
        samples = queue.samples
        rates = None
        if windows or not (samples is None or samples.is_idle(cache.tick)):
            rates = _rates(request, [queue], older.get(_subject(queue)) if older else None)
        row = queue_row(queue.item, node, rates)
        if has_age:
            row[OLDEST_READY_AGE] = queue.oldest_ready_age(time.time())
        return _reduced(request, row)

    def value(queue: CachedQueue, keys: list[str]) -> ReplyValue:
        item = queue.item
        if is_rate(keys):
            return rate_of(queue, QUEUE_STATISTICS, keys, cache.tick)
        if len(keys) == 2 and keys[0] == "message_stats":
            return _stats(item).get(keys[1], 0)
        if len(keys) == 1:
            key = keys[0]
            if key in _DIRECT:
                return item[key]
            if key == "messages":
                return _ready(item) + item["unacked"]
            if key == "messages_ready":
                return _ready(item)
            if key == "messages_unacknowledged":
                return item["unacked"]
            if key == OLDEST_READY_AGE:
                return queue.oldest_ready_age(time.time())
        return value_at(queue_row(item, node), keys)

    def order(queue: CachedQueue) -> tuple[str, str]:
        return queue.item["vhost"], queue.item["name"]

    source = Source(queues, show, lambda queue: str(queue.item["name"]), value, order)
    chosen = choose(source, request.query)
    if windows:
        older = await _older(request, chosen.objects)
    return show_chosen(source, chosen, request.query)


async def list_all(request: Request) -> Answer:
    return Answer(body=await _select(request, await visible(request)))


async def list_in_vhost(request: Request) -> Answer:
    found = [queue for queue in await visible(request) if queue.item["vhost"] == request.vhost]
    return Answer(body=await _select(request, found))


async def show(request: Request) -> Answer:
    """Return a queue as it is now, with its consumers."""
    item = await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    if request.windows:
        await request.cache.refresh()
    cached = request.cache.queue(request.vhost, request.name)
    if cached is None:
        rates = _rates(request, [], None)
    else:
        older = await _older(request, [cached])
        rates = _rates(request, [cached], older.get(_subject(cached)))
    row = queue_row(item, request.settings.node, rates)
    consumers = []
    if item["consumers"] or item["owner"] is not None:
        connections = await connections_by_number(request)
        found = await request.control.call("consumers.list", {"vhost": request.vhost, "queue": request.name})
        consumers = [consumer_row(consumer, connections, request.settings.node) for consumer in found]
        if item["owner"] is not None:
            row["owner_pid_details"] = peer_of(connections.get(item["owner"]))
    row |= {"consumer_details": consumers, "deliveries": [], "incoming": []}
    return Answer(body=columns_of(_reduced(request, row), request.query))


async def flows(request: Request) -> Answer:
    """List which exchanges messages come from, for each queue of a vhost that gets any."""
    await request.cache.refresh()
    tick = request.cache.tick
    return Answer(
        body=[
            {"exchange": exchange, "queue": queue.item["name"], "rate": rate}
            for queue in list(request.cache.queues.values())
            if queue.flows is not None and queue.item["vhost"] == request.vhost
            for exchange, rate in queue.flows.rates(tick).items()
        ]
    )


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
    return declared(existing is None, QUEUE_ARGUMENTS, request.arguments())


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
    found = [queue for queue in await visible(request) if queue.item["owner"] in owned]
    return Answer(body=await _select(request, found))


async def show_replicas(request: Request) -> Answer:
    """Return the members of a quorum queue: this node."""
    item = await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    if item["type"] != "quorum":
        return Answer(503, {"status": "failed", "reason": "classic_queue_not_supported"})
    member = dict.fromkeys(("Commit Index", "Last Applied", "Last Log Index", "Last Written", "Snapshot Index", "Term"), 0)
    return Answer(
        body=[
            {
                **member,
                "Machine Version": 0,
                "Membership": "voter",
                "Node Name": request.settings.node,
                "Raft State": "leader",
            }
        ]
    )


async def change_replicas(request: Request) -> Answer:
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    return await change_all_replicas(request)


async def change_all_replicas(_: Request) -> Answer:
    raise bad_request("queues have one replica: a Leveret broker is one node")

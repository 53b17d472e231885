"""Queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from leveret.broker.queues.registry import QUEUE_ARGUMENTS
from leveret.management.http.connections import connections_by_number, consumer_row, peer_of
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.history_store import Subject
from leveret.management.http.lists import RowStream, Source, choose, columns_of, show_chosen, value_at
from leveret.management.http.measured import Measured, Rates, is_rate, rate_of
from leveret.management.http.objects import QUEUE_STATISTICS, CachedQueue, idle_since, ready_bytes_of, ready_of, unacked_of
from leveret.management.http.request import NO_CONTENT, Answer, Request, declared
from leveret.management.http.samples import OlderSamples
from leveret.management.http.statistics import GARBAGE_COLLECTION, deduplication, message_stats, queue_totals, with_rates
from leveret.management.json_values import ReplyValue

# A column of lists of queues that RabbitMQ does not have: only queries that name it get it.
OLDEST_READY_AGE: Final = "oldest_ready_age"
_READY: Final = "messages_ready"
_UNACKED: Final = "messages_unacknowledged"
_LENGTHS: Final = ("messages", _READY, _UNACKED)
# Keys of rows whose values are those of the broker's answer.
_DIRECT = ("name", "vhost", "type", "durable", "auto_delete", "exclusive", "consumers", "memory")


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


@dataclass(slots=True)
class _Shown:
    """A queue in an answer.

    Attributes:
        item: What the broker says of it.
        queue: The queue with its samples; None if it is unknown yet.
        node: The name of the node.
        rates: Its rates and samples; None if there are none.
        now: The time in seconds.
    """

    item: Row
    queue: CachedQueue | None
    node: str
    rates: Rates | None
    now: float


def _definition(shown: _Shown) -> Row:
    """Return the keys that remain if statistics are disabled."""
    item, node = shown.item, shown.node
    return {
        "arguments": item["arguments"],
        "auto_delete": item["auto_delete"],
        "durable": item["durable"],
        "exclusive": item["exclusive"],
        "leader": node,
        "members": [node],
        "name": item["name"],
        "node": node,
        "online": [node],
        "policy": item["policy"],
        "state": "paused" if item["paused"] else "running",
        "type": item["type"],
        "vhost": item["vhost"],
    }


def _lengths(shown: _Shown) -> Row:
    return queue_totals(ready_of(shown.item), unacked_of(shown.item), shown.rates)


def _message_stats(shown: _Shown) -> Row:
    return {"message_stats": message_stats(_stats(shown.item), shown.rates)}


def _sizes(shown: _Shown) -> Row:
    """Return what the messages take, in memory and on disk."""
    item = shown.item
    ready, ready_bytes, paged, paged_bytes = ready_of(item), ready_bytes_of(item), item["paged"], item["paged_bytes"]
    unacked, unacked_bytes = unacked_of(item), item["unacked_bytes"]
    return {
        "memory": item["memory"],
        "message_bytes": ready_bytes + unacked_bytes,
        "message_bytes_paged_out": paged_bytes,
        "message_bytes_persistent": item["persistent_bytes"],
        "message_bytes_ram": ready_bytes + unacked_bytes - paged_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "messages_paged_out": paged,
        "messages_persistent": item["persistent"],
        "messages_ram": ready + unacked - paged,
        "messages_ready_ram": ready - paged,
        "messages_unacknowledged_ram": unacked,
    }


def _state(shown: _Shown) -> Row:
    """Return all other keys: consumers, policies, and those that only queues of this type have."""
    item, node = shown.item, shown.node
    capacity = 0.0 if shown.queue is None else shown.queue.consumer_capacity(item, shown.now)
    row = {
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "consumers": item["consumers"],
        "effective_policy_definition": item["effective_policy_definition"],
        "exclusive_consumer_tag": item["exclusive_consumer"] or None,
        "garbage_collection": GARBAGE_COLLECTION,
        "head_message_timestamp": item["head_timestamp"],
        "idle_since": None if shown.queue is None else idle_since(shown.queue.changed_at, int(shown.now)),
        "operator_policy": item["operator_policy"],
        "recoverable_slaves": None,
        **with_rates({"reductions": 0}, shown.rates),
        "single_active_consumer_tag": item["active_consumer"] or None,
        **deduplication(item),
    }
    if item["type"] == "quorum":
        row |= {
            "message_bytes_dlx": 0,
            "messages_dlx": 0,
            "open_files": {node: 0},
            "single_active_consumer_ctag": item["active_consumer"] or None,
        }
    elif item["type"] == "stream":
        row["readers"] = {node: item["consumers"]}
    return row


def _age(shown: _Shown) -> Row:
    return {OLDEST_READY_AGE: None if shown.queue is None else shown.queue.oldest_ready_age(shown.now)}


# A function that returns keys of a row. An answer calls only those that return a key which it shows.
_Part: TypeAlias = Callable[[_Shown], Row]
_PARTS: Final[tuple[_Part, ...]] = (_definition, _lengths, _message_stats, _sizes, _state)


def _parts_of(names: Collection[str]) -> tuple[_Part, ...]:
    """Return the parts that have these keys."""
    return tuple(dict.fromkeys(_PART_OF.get(name.removesuffix("_details"), _state) for name in names))


def _parts_for(request: Request) -> tuple[_Part, ...]:
    """Return the parts that an answer needs."""
    columns = request.query.get("columns")
    if request.asks_for("disable_stats"):
        totals = request.asks_for("enable_queue_totals")
        found: tuple[_Part, ...] = (_definition, _lengths) if totals else (_definition,)
    else:
        found = _PARTS
    if columns is None:
        return found
    wanted = _parts_of([name.partition(".")[0] for name in columns.split(",")])
    return tuple(part for part in wanted if part in found or part is _age)


def queue_row(shown: _Shown, parts: tuple[_Part, ...] = _PARTS) -> Row:
    """Return the parts of a queue as lists show it."""
    row: Row = {}
    for part in parts:
        row |= part(shown)
    return row


# Keys of the parts, except for those of `_state`.
_PART_OF: Final[dict[str, _Part]] = {
    **dict.fromkeys(
        (
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
        ),
        _definition,
    ),
    **dict.fromkeys(_LENGTHS, _lengths),
    "message_stats": _message_stats,
    **dict.fromkeys(
        (
            "memory",
            "message_bytes",
            "message_bytes_paged_out",
            "message_bytes_persistent",
            "message_bytes_ram",
            "message_bytes_ready",
            "message_bytes_unacknowledged",
            "messages_paged_out",
            "messages_persistent",
            "messages_ram",
            "messages_ready_ram",
            "messages_unacknowledged_ram",
        ),
        _sizes,
    ),
    OLDEST_READY_AGE: _age,
}


def _without_rates(request: Request, row: Row) -> Row:
    """Return the row of a queue without the rates of its lengths if the query disables statistics."""
    if not request.asks_for("disable_stats"):
        return row
    return {name: value for name, value in row.items() if not name.endswith("_details")}


async def visible(request: Request) -> list[CachedQueue]:
    """Return the queues that the user sees."""
    await request.cache.refresh()
    identity, found = request.identity, list(request.cache.queues.values())
    return found if identity.is_monitor() else [queue for queue in found if identity.sees(queue.item["vhost"])]


async def _select(request: Request, queues: list[CachedQueue]) -> RowStream | Row:
    node, cache, windows = request.settings.node, request.cache, request.windows
    request.check_listed_samples(len(queues))
    older: dict[Subject, OlderSamples] = {}
    parts, now = _parts_for(request), time.time()

    def show(queue: CachedQueue) -> Row:
        samples = queue.samples
        rates = None
        if windows or not (samples is None or samples.is_idle(cache.tick)):
            rates = _rates(request, [queue], older.get(_subject(queue)) if older else None)
        return _without_rates(request, queue_row(_Shown(queue.item, queue, node, rates, now), parts))

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
            if key in _LENGTHS:
                return (ready_of(item) if key != _UNACKED else 0) + (unacked_of(item) if key != _READY else 0)
        return value_at(queue_row(_Shown(item, queue, node, None, now), _parts_of(keys[:1])), keys)

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
    row = queue_row(_Shown(item, cached, request.settings.node, rates, time.time()), _parts_for(request))
    if not request.asks_for("disable_stats"):
        row |= {**await _consumers(request, item), "deliveries": [], "incoming": []}
    return Answer(body=columns_of(_without_rates(request, row), request.query))


async def _consumers(request: Request, item: Row) -> Row:
    """Return the consumers and the owner of a queue."""
    if not item["consumers"] and item["owner"] is None:
        return {"consumer_details": []}
    connections = await connections_by_number(request)
    found = await request.control.call("consumers.list", {"vhost": request.vhost, "queue": request.name})
    row: Row = {"consumer_details": [consumer_row(consumer, connections, request.settings.node) for consumer in found]}
    if item["owner"] is not None:
        row["owner_pid_details"] = peer_of(connections.get(item["owner"]))
    return row


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

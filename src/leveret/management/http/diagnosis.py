"""Facts that explain why a consumer gets no messages, and why a publisher is stopped."""

from __future__ import annotations

import time

from leveret.management.http.connections import (
    channel_name,
    connections_by_number,
    consumer_row,
    find,
    is_amqp10,
    may_see,
)
from leveret.management.http.control import Row
from leveret.management.http.errors import not_found
from leveret.management.http.lists import select
from leveret.management.http.objects import CachedChannel, CachedQueue
from leveret.management.http.request import Answer, Request


async def list_consumers(request: Request) -> Answer:
    """List the consumers of a queue with the state of their channels and connections."""
    of_queue = {"vhost": request.vhost, "queue": request.name}
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    connections = await connections_by_number(request)
    found = await request.control.call("consumers.list", of_queue)
    return Answer(body=select([_consumer_row(request, item, connections) for item in found], request.query))


def _consumer_row(request: Request, item: Row, connections: dict[int, Row]) -> Row:
    """Return a consumer. Only users who may see its connection see the state of that and of the channel."""
    connection = connections.get(item["connection"])
    channel = request.cache.channels.get((item["connection"], item["channel"]))
    return {
        **consumer_row(item, connections, request.settings.node),
        "priority": item["priority"],
        "unacked": item["unacked"],
        "oldest_unacked_age": item["oldest_unacked_age"],
        "connection": None if connection is None else {key: connection[key] for key in ("state", "protocol")},
        "channel": None if connection is None or channel is None else _channel_state(channel, connection),
    }


def _channel_state(cached: CachedChannel, connection: Row) -> Row:
    """Return the state of a channel. A session of AMQP 1.0 has the credit of its links in place of a prefetch limit."""
    has_credit = is_amqp10(connection)
    channel = cached.item
    limit = channel["prefetch"]
    return {
        "state": channel["state"],
        "unacked": channel["unacked"],
        "oldest_unacked_age": cached.oldest_unacked_age(time.time()),
        "prefetch": 0 if has_credit else limit,
        "credit": limit if has_credit else None,
    }


async def show_throttling(request: Request) -> Answer:
    """Return why the broker does not read from a connection."""
    item = (await find(request)).item
    return Answer(body=await request.control.call("connections.throttling", {"number": item["number"]}))


async def _cached_queue(request: Request) -> CachedQueue:
    await request.cache.refresh()
    queue = request.cache.queue(request.vhost, request.name)
    if queue is None:
        raise not_found()
    return queue


async def show_ready(request: Request) -> Answer:
    """Return the numbers of ready, delayed and leased messages of a queue, and the age of the oldest ready one."""
    queue = await _cached_queue(request)
    return Answer(body={**_numbers(queue), "oldest_ready_age": queue.oldest_ready_age(time.time())})


def _numbers(queue: CachedQueue) -> Row:
    return {name: queue.item[name] for name in ("ready", "delayed", "leased")}


async def list_ready_queues(request: Request) -> Answer:
    """List the queues with ready messages, except for streams, and the age of the oldest one of each."""
    await request.cache.refresh()
    now = time.time()
    rows = [
        {
            "vhost": queue.item["vhost"],
            "name": queue.item["name"],
            **_numbers(queue),
            "oldest_ready_age": queue.oldest_ready_age(now),
        }
        for queue in request.cache.queues.values()
        if queue.ready_since and request.identity.sees(queue.item["vhost"])
    ]
    return Answer(body=select(rows, request.query))


async def show_unacked(request: Request) -> Answer:
    """Return the number of unacked messages of a queue, and the age of the oldest one."""
    queue = await _cached_queue(request)
    return Answer(body={"unacked": queue.item["unacked"], "oldest_unacked_age": queue.oldest_unacked_age(time.time())})


async def list_unacked_queues(request: Request) -> Answer:
    """List the queues with unacked messages, and the age of the oldest one of each."""
    await request.cache.refresh()
    now = time.time()
    rows = [
        {
            "vhost": queue.item["vhost"],
            "name": queue.item["name"],
            "unacked": queue.item["unacked"],
            "oldest_unacked_age": queue.oldest_unacked_age(now),
        }
        for queue in request.cache.queues.values()
        if queue.item["unacked"] and request.identity.sees(queue.item["vhost"])
    ]
    return Answer(body=select(rows, request.query))


async def list_unacked_channels(request: Request) -> Answer:
    """List the channels and sessions with unacked messages, and the age of the oldest one of each."""
    connections = await connections_by_number(request)
    now = time.time()
    rows = [
        {
            "vhost": channel.item["vhost"],
            "name": channel_name(connections.get(connection), number),
            "user": channel.item["user"],
            "unacked": channel.item["unacked"],
            "oldest_unacked_age": channel.oldest_unacked_age(now),
        }
        for (connection, number), channel in request.cache.channels.items()
        if channel.item["unacked"] and may_see(request, channel.item["user"])
    ]
    return Answer(body=select(rows, request.query))

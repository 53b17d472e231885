"""Streams and super streams: list, inspect, declare, delete; positions of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, field

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.queue import StreamQueue
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.management.admin import Admin

HASH: Final = "x-consistent-hash"
# Partitions that are declared in one turn of the event loop.
PARTITIONS_A_TURN: Final = 100


class Offset(NamedInVhost, kw_only=True):
    """`offset` None deletes the position of the consumer."""

    consumer: str
    offset: Annotated[int, Meta(ge=0)] | None = None


class AddSuper(NamedInVhost, kw_only=True):
    partitions: Annotated[int, Meta(ge=1, le=10_000)]
    arguments: dict[str, Any] = field(default_factory=dict)


def describe(stream: StreamQueue) -> Item:
    """Return the statistics of a stream.

    `since` is the start of the oldest chunk or segment, None if the stream is empty; `lag` is the largest lag of a named
    consumer; `sealed_until` is the first offset that is not in a segment.
    """
    segments = stream.segments
    chunks = stream.chunks
    began = segments[0].first_time if segments else chunks[0].time if chunks else None
    since = datetime.fromtimestamp(began / 1000, UTC).isoformat(timespec="seconds") if began is not None else None
    lags = [lag for item in _consumers_of(stream) if (lag := item["lag"]) is not None]
    return {
        "vhost": stream.vhost.name, "name": plain(stream.name), "messages": stream.ready_count,
        "octets": stream.ready_bytes, "memory": stream.memory, "first_offset": stream.first_offset,
        "next_offset": stream.visible_until - 1, "since": since, "readers": len(stream.readers),
        "consumers": len(stream.tracking.progress), "lag": max(lags, default=None),
        "publishers": len(stream.tracking.sequences), "segments": len(segments),
        "segment_octets": sum(segment.octets for segment in segments), "unsealed": stream.count,
        "sealed_until": segments[-1].last + 1 if segments else stream.first_offset,
        "sealing": stream.sealing is not None, "unsealed_because": _why_unsealed(stream),
        "sealing_problem": stream.sealing.problem or None if stream.sealing is not None else None,
        "arguments": plain(stream.arguments),
    }


def _why_unsealed(stream: StreamQueue) -> str | None:
    """Return the reason why the stream is not sealed, None if it is."""
    if stream.sealing is not None:
        return None
    return stream.broker.unsealed or "'streams.sealing' is false"


def find(admin: Admin, arguments: NamedInVhost) -> StreamQueue:
    """Return the stream with this name. Raises `NotFound`."""
    queue = admin.vhost(arguments.vhost).find_queue(arguments.name)
    stream = None if queue is None else queue.as_stream()
    if stream is None:
        what = "no stream" if queue is None else "queue, but no stream,"
        raise NotFound(f"{what} '{arguments.name}' in vhost '{arguments.vhost}'")
    return stream


def list_streams(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [queue.as_stream() for vhost in admin.vhosts(arguments.vhost) for queue in vhost.queues.values()]
    return (describe(stream) for stream in found if stream is not None)


def show(admin: Admin, arguments: NamedInVhost) -> Item:
    return describe(find(admin, arguments))


def list_supers(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    """List super streams with the totals of their partitions."""
    for vhost in admin.vhosts(arguments.vhost):
        for exchange in vhost.exchanges.values():
            streams = partitions(vhost, exchange.name) if exchange.type == HASH else []
            if streams:
                yield {
                    "vhost": vhost.name, "name": plain(exchange.name), "partitions": len(streams),
                    "messages": sum(stream.ready_count for stream in streams),
                    "octets": sum(stream.ready_bytes for stream in streams),
                    "readers": sum(len(stream.readers) for stream in streams),
                    "consumers": len({name for stream in streams for name in stream.tracking.progress}),
                }


def consumers(admin: Admin, arguments: NamedInVhost) -> Iterator[Item]:
    """List the named consumers of a stream, or of all partitions of a super stream, with their positions and lag."""
    vhost = admin.vhost(arguments.vhost)
    exchange = vhost.exchanges.get(arguments.name)
    streams: list[StreamQueue] = []
    if arguments.name not in vhost.queues and exchange is not None and exchange.type == HASH:
        streams = sorted(partitions(vhost, arguments.name), key=lambda stream: stream.name)
    if not streams:
        streams = [find(admin, arguments)]
    return (item for stream in streams for item in _consumers_of(stream))


def _consumers_of(stream: StreamQueue) -> Iterator[Item]:
    end = stream.visible_until - 1
    first = stream.first_offset
    return ({
        "stream": plain(stream.name), "consumer": plain(name), "next_offset": progress.next if progress.next >= 0 else None,
        "lag": end - max(progress.next, first) if progress.next >= 0 else None, "reading": name in stream.named,
    } for name, progress in sorted(stream.tracking.progress.items()))


def set_offset(admin: Admin, arguments: Offset) -> None:
    """Set or delete the position of a consumer. Raises `PreconditionFailed` while it reads."""
    stream = find(admin, arguments)
    if arguments.consumer in stream.named:
        raise PreconditionFailed(f"consumer '{arguments.consumer}' is reading stream '{arguments.name}': stop it first")
    if arguments.offset is None and arguments.consumer not in stream.tracking.progress:
        raise NotFound(f"stream '{arguments.name}' has no consumer '{arguments.consumer}'")
    stream.tracking.set_offset(arguments.consumer, arguments.offset)


def partitions(vhost: Vhost, name: str) -> list[StreamQueue]:
    """Return the partitions of a super stream. Raises `NotFound`."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or exchange.type != HASH:
        raise NotFound(f"no super stream '{name}' in vhost '{vhost.name}'")
    found = [binding.destination.as_stream() for binding in exchange.bindings()
             if isinstance(binding.destination, Queue)]
    return [stream for stream in found if stream is not None]


async def add_super(admin: Admin, arguments: AddSuper) -> Item:
    """Declare a super stream: an exchange that spreads messages over streams by their routing keys.

    Existing parts must be equal. Partitions may be added. Other clients are served in between.
    """
    vhost = admin.vhost(arguments.vhost)
    name = arguments.name
    vhost.declare_exchange(name, HASH, durable=True)
    wanted = {**arguments.arguments, "x-queue-type": "stream"}
    names = [f"{name}-{number}" for number in range(arguments.partitions)]
    bound = {stream.name for stream in partitions(vhost, name)}
    try:
        for number, partition in enumerate(names):
            if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await asyncio.sleep(0)
            queue = vhost.declare_queue(partition, None, durable=True, arguments=wanted)
            if partition not in bound:
                vhost.bind(queue, name, "1", {})
    finally:
        await admin.stored()
    return {"name": name, "partitions": names}


def delete_super(admin: Admin, arguments: NamedInVhost) -> Item:
    """Delete a super stream with all its partitions. Returns the number of its messages."""
    vhost = admin.vhost(arguments.vhost)
    streams = partitions(vhost, arguments.name)
    vhost.delete_exchange(arguments.name)
    return {"messages": sum(vhost.remove_queue(stream) for stream in streams)}


CALLS = {
    "streams.list": Call(list_streams, InVhost),
    "streams.list_supers": Call(list_supers, InVhost),
    "streams.show": Call(show, NamedInVhost),
    "streams.consumers": Call(consumers, NamedInVhost),
    "streams.set_offset": Call(set_offset, Offset, changes=True),
    "streams.add_super": Call(add_super, AddSuper, changes=True),
    "streams.delete_super": Call(delete_super, NamedInVhost, changes=True),
}

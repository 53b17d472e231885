"""Sealed segments of streams: list, seal, erase by rules; their Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.streams.queue import StreamQueue
from leveret.broker.streams.tables import StreamTables
from leveret.management.calls import Arguments, Call, Item, NamedInVhost, plain
from leveret.management.streams import find, partitions

if TYPE_CHECKING:
    from leveret.broker.segments import Segment, Segments
    from leveret.management.admin import Admin


class Erase(NamedInVhost, kw_only=True):
    """`rules` are those of `leveret.segments.erasure`, which validates them."""

    rules: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False
    seal: bool = False


class Streams(Arguments, kw_only=True):
    """Arguments that select all streams, those of a vhost, or a single one."""

    vhost: str | None = None
    name: str | None = None


def _hub(admin: Admin) -> Segments:
    if admin.broker.segments is None:
        raise PreconditionFailed("this broker does not seal streams; that needs the extra `segments`, and 'storage.engine'"
                                 " other than 'memory'")
    return admin.broker.segments


def names(admin: Admin, arguments: NamedInVhost) -> Item:
    """Return the name of a stream, or those of the partitions of a super stream in the order of their numbers."""
    vhost = admin.vhost(arguments.vhost)
    if arguments.name in vhost.queues or arguments.name not in vhost.exchanges:
        return {"streams": [plain(find(admin, arguments).name)]}
    found = [plain(stream.name) for stream in partitions(vhost, arguments.name)]
    return {"streams": sorted(found, key=lambda name: (len(name), name))}


def segments(admin: Admin, arguments: NamedInVhost) -> Iterator[Item]:
    """List the segments of a stream, oldest first. `held_by` is the number of read leases on the file."""
    stream = find(admin, arguments)
    return (_describe(admin, segment) for segment in list(stream.segments))


def _describe(admin: Admin, segment: Segment) -> Item:
    hub = admin.broker.segments
    item = segment.entry()
    if hub is not None:
        item["held_by"] = len(hub.leases.holders(segment.path, admin.broker.timers.now()))
        item["path"] = hub.url_of(segment.path)
    return item


def seal(admin: Admin, arguments: NamedInVhost) -> Item:
    """Start sealing all current messages. It is done when `sealed_until` of the stream reaches `until`."""
    stream = find(admin, arguments)
    if stream.sealing is None:
        raise PreconditionFailed(f"stream '{arguments.name}' in vhost '{arguments.vhost}' is not sealed by this broker; see"
                                 " 'streams.sealing'")
    stream.sealing.seal_all(None)
    return {"until": stream.visible_until - 1, "messages": stream.count}


def erase(admin: Admin, arguments: Erase) -> Item:
    """Start an erasure. `streams.erasing` returns its progress."""
    return find(admin, arguments).erase(arguments.rules, arguments.dry_run, arguments.seal).entry()


def erasing(admin: Admin, arguments: NamedInVhost) -> Item:
    """Return the progress of the latest erasure of a stream."""
    stream = find(admin, arguments)
    if stream.erasing is None:
        raise NotFound(f"no erasure of stream '{arguments.name}' in vhost '{arguments.vhost}' since the broker started;"
                       " start an interrupted one again")
    return stream.erasing.entry()


def _tables(admin: Admin) -> StreamTables:
    tables = _hub(admin).tables
    if tables is None:
        raise PreconditionFailed("streams of this broker have no Iceberg tables: 'streams.iceberg' is false")
    return tables


def _chosen(admin: Admin, arguments: Streams) -> list[StreamQueue]:
    if arguments.name is not None:
        return [find(admin, NamedInVhost(name=arguments.name, vhost=arguments.vhost or "/"))]
    found = (queue.as_stream() for vhost in admin.vhosts(arguments.vhost) for queue in vhost.queues.values())
    return [stream for stream in found if stream is not None]


def tables(admin: Admin, arguments: Streams) -> Iterator[Item]:
    """List the Iceberg tables of streams, and whether they are up to date with the manifests."""
    known = _tables(admin)
    return ({"vhost": stream.vhost.name, "name": plain(stream.name), **known.state(stream).entry()}
            for stream in _chosen(admin, arguments))


def sync_tables(admin: Admin, arguments: Streams) -> Item:
    """Start updating the tables. `streams.tables` shows when they are up to date."""
    chosen = _chosen(admin, arguments)
    _tables(admin).hurry(chosen)
    return {"streams": len(chosen)}


CALLS = {
    "streams.names": Call(names, NamedInVhost),
    "streams.segments": Call(segments, NamedInVhost),
    "streams.seal": Call(seal, NamedInVhost, changes=True),
    "streams.erase": Call(erase, Erase, changes=True),
    "streams.erasing": Call(erasing, NamedInVhost),
    "streams.tables": Call(tables, Streams),
    "streams.sync_tables": Call(sync_tables, Streams, changes=True),
}

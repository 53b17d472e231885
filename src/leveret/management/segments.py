"""Sealed segments of streams: list, seal at once, erase by rules; the Iceberg tables over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues.stream import StreamQueue
from leveret.broker.stream_tables import StreamTables
from leveret.management.calls import Arguments, Call, Item, NamedInVhost, plain
from leveret.management.streams import find, partitions

if TYPE_CHECKING:
    from leveret.broker.segments import Segment, Segments
    from leveret.management.admin import Admin


class Erase(NamedInVhost, kw_only=True):
    """`rules` as leveret.segments.erasure has them: here nobody looks into them."""

    rules: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False
    seal: bool = False


class Streams(Arguments, kw_only=True):
    """Of all vhosts, of one, or one stream of one."""

    vhost: str | None = None
    name: str | None = None


def _hub(admin: Admin) -> Segments:
    if admin.broker.segments is None:
        raise PreconditionFailed("this broker does not seal streams: the settings of streams, and the extra `segments`, say"
                                 " whether it does")
    return admin.broker.segments


def names(admin: Admin, arguments: NamedInVhost) -> Item:
    """The stream of that name, or the streams of one in partitions, in the order of their numbers."""
    vhost = admin.vhost(arguments.vhost)
    if arguments.name in vhost.queues or arguments.name not in vhost.exchanges:
        return {"streams": [plain(find(admin, arguments).name)]}
    found = [plain(stream.name) for stream in partitions(vhost, arguments.name)]
    return {"streams": sorted(found, key=lambda name: (len(name), name))}


def segments(admin: Admin, arguments: NamedInVhost) -> Iterator[Item]:
    """The segments of a stream, oldest first. `held_by`: who has a read lease on the file."""
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
    """Begin to seal all that is visible now: done when `sealed_until` of the stream has come to `until`."""
    stream = find(admin, arguments)
    if stream.sealing is None:
        raise PreconditionFailed(f"stream '{arguments.name}' in vhost '{arguments.vhost}' is not sealed by this broker; see"
                                 " the settings of streams")
    stream.sealing.seal_all(None)
    return {"until": stream.visible_until - 1, "messages": stream.count}


def erase(admin: Admin, arguments: Erase) -> Item:
    """Begin an erasure; `streams.erasing` tells how far it is."""
    return find(admin, arguments).erase(arguments.rules, arguments.dry_run, arguments.seal).entry()


def erasing(admin: Admin, arguments: NamedInVhost) -> Item:
    """How far the latest erasure of a stream has come."""
    stream = find(admin, arguments)
    if stream.erasing is None:
        raise NotFound(f"stream '{arguments.name}' in vhost '{arguments.vhost}' has had no erasure since the broker's"
                       " start: one that a stop has interrupted has to be begun anew")
    return stream.erasing.entry()


def _tables(admin: Admin) -> StreamTables:
    tables = _hub(admin).tables
    if tables is None:
        raise PreconditionFailed("streams of this broker have no Iceberg tables: the setting streams.iceberg is off")
    return tables


def _chosen(admin: Admin, arguments: Streams) -> list[StreamQueue]:
    if arguments.name is not None:
        return [find(admin, NamedInVhost(name=arguments.name, vhost=arguments.vhost or "/"))]
    return [queue for vhost in admin.vhosts(arguments.vhost) for queue in vhost.queues.values()
            if isinstance(queue, StreamQueue)]


def tables(admin: Admin, arguments: Streams) -> Iterator[Item]:
    """The Iceberg tables of streams, and whether they agree with the manifests."""
    known = _tables(admin)
    return ({"vhost": stream.vhost.name, "name": plain(stream.name), **known.state(stream).entry()}
            for stream in _chosen(admin, arguments))


def sync_tables(admin: Admin, arguments: Streams) -> Item:
    """Have the tables follow now; `streams.tables` tells when they have."""
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

"""Sealed segments of streams and their Iceberg tables: list, seal, erase, sync."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.streams.queue import StreamQueue
from leveret.broker.streams.tables import StreamTables, TableState
from leveret.management.json_values import plain
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.operations.streams import SegmentInfo, StreamNames, describe_segment, find, partitions, why_unsealed
from leveret.management.structs import NamedInVhost, Reply, Request

if TYPE_CHECKING:
    from leveret.broker.segments import Segment, Segments
    from leveret.broker.streams.erasing import Erasing


class Erase(NamedInVhost, kw_only=True):
    """Request to erase. `leveret.segments.erasure` defines and validates `rules`."""

    rules: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False
    seal: bool = False


class Streams(Request, kw_only=True):
    """Request that selects all streams, the streams of a vhost, or a single stream."""

    vhost: str | None = None
    name: str | None = None


class Sealing(Reply, kw_only=True):
    """Sealing in progress, of the messages before the offset `until`."""

    until: int
    messages: int


class ErasureInfo(Reply, kw_only=True):
    """The progress of an erasure.

    `segments` counts examined segments, `remaining` those not yet examined, and `unsealed` messages in no segment. The
    other fields count rows of rewritten segments.
    """

    state: str
    problem: str | None
    dry_run: bool
    segments: int
    rewritten: int
    remaining: int
    unsealed: int
    rows: int | UnsetType = UNSET
    matched: int | UnsetType = UNSET
    removed: int | UnsetType = UNSET
    emptied: int | UnsetType = UNSET
    masked: int | UnsetType = UNSET
    unread: int | UnsetType = UNSET


class TableInfo(Reply, kw_only=True):
    """The Iceberg table of a stream. `synced` is the Unix time in milliseconds when it last matched the manifest."""

    vhost: str
    name: str
    table: str | None
    files: int
    pending: bool
    synced: int | None
    problem: str | None


class Streamed(Reply, kw_only=True):
    """A number of streams."""

    streams: int


def _hub(context: Context) -> Segments:
    if context.broker.segments is None:
        raise PreconditionFailed(
            "this broker does not seal streams; expected the extra `segments`, and a 'storage.engine' other than 'memory'"
        )
    return context.broker.segments


def names(context: Context, request: NamedInVhost) -> StreamNames:
    """Return the name of a stream, or the names of a super stream's partitions in numerical order."""
    vhost = context.vhost(request.vhost)
    if request.name in vhost.queues or request.name not in vhost.exchanges:
        return StreamNames(streams=[plain(find(context, request).name)])
    found = [plain(stream.name) for stream in partitions(vhost, request.name)]
    return StreamNames(streams=sorted(found, key=lambda name: (len(name), name)))


def segments(context: Context, request: NamedInVhost) -> Iterator[SegmentInfo]:
    """List the segments of a stream, oldest first."""
    stream = find(context, request)
    return (_describe(context, segment) for segment in list(stream.segments))


def _describe(context: Context, segment: Segment) -> SegmentInfo:
    hub = context.broker.segments
    if hub is None:
        return describe_segment(segment, segment.path)
    item = describe_segment(segment, hub.url_of(segment.path))
    item.held_by = len(hub.leases.holders(segment.path, context.broker.timers.now()))
    return item


def seal(context: Context, request: NamedInVhost) -> Sealing:
    """Start sealing all current messages. Sealing is complete when the stream's `sealed_until` reaches `until`."""
    stream = find(context, request)
    if stream.sealing is None:
        raise PreconditionFailed(
            f"stream '{request.name}' in vhost '{request.vhost}' is not sealed: {why_unsealed(stream)}"
        )
    stream.sealing.seal_all(None)
    return Sealing(until=stream.visible_until - 1, messages=stream.count)


def erase(context: Context, request: Erase) -> ErasureInfo:
    """Start an erasure. `streams.erasing` returns its progress."""
    return describe_erasure(find(context, request).erase(request.rules, request.dry_run, request.seal))


def erasing(context: Context, request: NamedInVhost) -> ErasureInfo:
    """Return the progress of the latest erasure of a stream."""
    stream = find(context, request)
    if stream.erasing is None:
        raise NotFound(
            f"no erasure of stream '{request.name}' in vhost '{request.vhost}' since the broker started;"
            " restart an interrupted one"
        )
    return describe_erasure(stream.erasing)


def describe_erasure(erasing: Erasing) -> ErasureInfo:
    """Describe an erasure."""
    remaining = len([segment for segment in erasing.stream.segments if segment.last >= erasing.at])
    return ErasureInfo(
        state=erasing.state,
        problem=erasing.problem or None,
        dry_run=erasing.dry_run,
        segments=erasing.segments,
        rewritten=erasing.rewritten,
        remaining=remaining,
        unsealed=erasing.stream.count,
        **erasing.counts,
    )


def _tables(context: Context) -> StreamTables:
    tables = _hub(context).tables
    if tables is None:
        raise PreconditionFailed("the streams of this broker have no Iceberg tables: 'streams.iceberg' is false")
    return tables


def _chosen(context: Context, request: Streams) -> list[StreamQueue]:
    if request.name is not None:
        return [find(context, NamedInVhost(name=request.name, vhost=request.vhost or "/"))]
    return [stream for vhost in context.vhosts(request.vhost) for stream in vhost.streams.walk()]


def tables(context: Context, request: Streams) -> Iterator[TableInfo]:
    """List the Iceberg tables of streams, with their sync state."""
    known = _tables(context)
    return (describe_table(stream, known.state(stream)) for stream in _chosen(context, request))


def describe_table(stream: StreamQueue, state: TableState) -> TableInfo:
    """Describe the table of a stream."""
    return TableInfo(
        vhost=stream.vhost.name,
        name=stream.name,
        table=state.name or None,
        files=state.files,
        pending=state.pending,
        synced=state.synced or None,
        problem=state.problem or None,
    )


def sync_tables(context: Context, request: Streams) -> Streamed:
    """Start updating the tables. `streams.tables` shows when they are up to date."""
    chosen = _chosen(context, request)
    _tables(context).hurry(chosen)
    return Streamed(streams=len(chosen))


OPERATIONS: Operations = {
    "streams.names": Operation(names, NamedInVhost, StreamNames),
    "streams.segments": Operation(segments, NamedInVhost, SegmentInfo),
    "streams.seal": Operation(seal, NamedInVhost, Sealing, changes=True),
    "streams.erase": Operation(erase, Erase, ErasureInfo, changes=True),
    "streams.erasing": Operation(erasing, NamedInVhost, ErasureInfo),
    "streams.tables": Operation(tables, Streams, TableInfo),
    "streams.sync_tables": Operation(sync_tables, Streams, Streamed, changes=True),
}

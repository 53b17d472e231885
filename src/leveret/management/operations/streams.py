"""Streams and super streams: list, inspect, declare, delete; the client operations `superstream.describe` and `stream.*`.

Clients read metadata, pin files and store the positions of consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import UNSET, Meta, UnsetType, field

from leveret.broker.errors import INTERNAL_ERROR, BrokerError, NotFound, PreconditionFailed
from leveret.broker.exchanges.consistent_hash import ConsistentHashExchange
from leveret.broker.jobs import Job
from leveret.broker.segment_names import STORED_NAMES
from leveret.broker.streams.queue import StreamQueue
from leveret.management.json_values import ClientTable, plain
from leveret.management.operations.operation import (
    EACH,
    Context,
    Later,
    Operation,
    Operations,
    Right,
    VhostContext,
    VhostOperation,
    VhostOperations,
)
from leveret.management.structs import Arguments, InVhost, Messages, NamedInVhost, Reply, Request, check_arguments
from leveret.security.patterns import Pattern

if TYPE_CHECKING:
    from leveret.broker.segments import Segment
    from leveret.broker.streams.unread import Unread
    from leveret.broker.vhost import Vhost

# Partitions to declare per turn.
PARTITIONS_PER_TURN: Final = 100
# Maximum number of names to match against a pattern.
MAX_MATCHED: Final = 100_000
# Matching steps per turn, of a few nanoseconds each, and the base cost of a name.
MAX_MATCH_WORK: Final = 400_000
MATCH_BASE_WORK: Final = 1_000
# Maximum seconds for which a request pins files. Repeated requests extend the pin.
MAX_PIN: Final = 86_400

OffsetNumber = Annotated[int, Meta(ge=0, le=(1 << 62))]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Offset(NamedInVhost, kw_only=True):
    """Request to set the position of a consumer; None deletes it."""

    consumer: str
    offset: Annotated[int, Meta(ge=0)] | None = None


class AddSuper(NamedInVhost, kw_only=True):
    partitions: Annotated[int, Meta(ge=1, le=10_000)]
    arguments: Arguments = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)


class Super(Request, kw_only=True):
    name: str


class Match(Request, kw_only=True):
    pattern: str


class Describe(Request, kw_only=True):
    """Request for a description, with the segments that contain offsets from `first` to `last` (inclusive)."""

    stream: str
    segments: bool = False
    first: OffsetNumber | None = None
    last: OffsetNumber | None = None


class Held(Request, kw_only=True):
    stream: str
    holder: Name


class Hold(Held, kw_only=True):
    first: OffsetNumber
    last: OffsetNumber
    seconds: Annotated[float, Meta(gt=0, le=MAX_PIN)]


class Release(Held, kw_only=True):
    keep_losses: bool = False


class Lost(Held, kw_only=True):
    """Request to report lost messages. `stop` is exclusive."""

    first: OffsetNumber
    stop: OffsetNumber


class Locate(Request, kw_only=True):
    stream: str
    timestamp: Annotated[int, Meta(ge=0)]


class Consumer(Request, kw_only=True):
    stream: str
    consumer: Name


class ConsumerAt(Consumer, kw_only=True):
    offset: OffsetNumber


class LagOf(Request, kw_only=True):
    """Request for the lag of a consumer, or of a reader that has read the messages before an offset."""

    stream: str
    consumer: Name | None = None
    offset: OffsetNumber | None = None

    def __post_init__(self) -> None:
        if (self.consumer is None) == (self.offset is None):
            raise ValueError("expected either 'consumer' or 'offset'")


class StreamInfo(Reply, kw_only=True):
    """A stream with its statistics.

    `since` is the start time of the oldest chunk or segment, None if the stream is empty; `lag` is the largest lag of the
    named consumers; `sealed_until` is the first offset that is not in a segment.
    """

    vhost: str
    name: str
    messages: int
    octets: int
    memory: int
    first_offset: int
    next_offset: int
    since: str | None
    readers: int
    consumers: int
    lag: int | None
    publishers: int
    segments: int
    segment_octets: int
    unsealed: int
    sealed_until: int
    sealing: bool
    unsealed_because: str | None
    sealing_problem: str | None
    arguments: ClientTable


class SuperStreamInfo(Reply, kw_only=True):
    """A super stream with the totals of its partitions."""

    vhost: str
    name: str
    partitions: int
    messages: int
    octets: int
    readers: int
    consumers: int


class SuperStream(Reply, kw_only=True):
    """A super stream and the names of its partitions."""

    name: str
    partitions: list[str]


class StreamConsumerInfo(Reply, kw_only=True):
    """The position and lag of a named consumer; `lag_seconds` is the age of the oldest message that it has not read."""

    vhost: str
    stream: str
    consumer: str
    next_offset: int | None
    lag: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    reading: bool


class SegmentInfo(Reply, kw_only=True, rename=STORED_NAMES):
    """The manifest entry of a segment. `path` is a file or URL; `held_by` is the number of pins on the file."""

    id: str
    path: str
    first: int
    last: int
    count: int
    bytes: int
    body_bytes: int
    first_time: int
    last_time: int
    schema_version: int
    crc32: int
    groups: list[int]
    footer_bytes: int
    footer_crc32: int
    held_by: int | UnsetType = UNSET


class Partitions(Reply, kw_only=True):
    """The partitions of a super stream."""

    partitions: list[str]


class StreamNames(Reply, kw_only=True):
    """Names of streams."""

    streams: list[str]


class StreamDescription(Reply, kw_only=True):
    """A stream as its readers see it. `id` is never reused; `next_offset` is the offset of the next message."""

    id: str
    first_offset: int
    next_offset: int
    octets: int
    segments: list[SegmentInfo] | UnsetType = UNSET


class Pinned(Reply, kw_only=True):
    """The pinned files."""

    segments: list[SegmentInfo]


class Released(Reply, kw_only=True):
    """The number of messages that readers of this holder reported as lost."""

    lost: int


class Position(Reply, kw_only=True):
    """An offset."""

    offset: int


class Registered(Reply, kw_only=True):
    """The start offset of a consumer. `committed` is the offset to resume from."""

    offset: int
    registered: bool
    committed: int


class Lag(Reply, kw_only=True):
    """The retained messages that a reader of the stream `id` has not read; `seconds` is the age of the oldest one."""

    id: str
    next_offset: int
    end: int
    lag: int
    bytes: int
    seconds: float


def describe(stream: StreamQueue) -> StreamInfo:
    """Return the statistics of a stream."""
    segments = stream.segments
    chunks = stream.chunks
    began = segments[0].first_time if segments else chunks[0].time if chunks else None
    since = datetime.fromtimestamp(began / 1000, UTC).isoformat(timespec="seconds") if began is not None else None
    end = stream.visible_until - 1
    first = stream.first_offset
    lags = [max(end - max(one.next, first), 0) for one in stream.tracking.progress.values() if one.next >= 0]
    return StreamInfo(
        vhost=stream.vhost.name,
        name=stream.name,
        messages=stream.ready_count,
        octets=stream.ready_bytes,
        memory=stream.cache.memory(),
        first_offset=stream.first_offset,
        next_offset=stream.visible_until - 1,
        since=since,
        readers=len(stream.readers),
        consumers=len(stream.tracking.progress),
        lag=max(lags, default=None),
        publishers=len(stream.tracking.sequences),
        segments=len(segments),
        segment_octets=sum(segment.bytes for segment in segments),
        unsealed=stream.count,
        sealed_until=segments[-1].last + 1 if segments else stream.first_offset,
        sealing=stream.sealing is not None,
        unsealed_because=why_unsealed(stream),
        sealing_problem=stream.sealing.problem or None if stream.sealing is not None else None,
        arguments=ClientTable(stream.arguments),
    )


def describe_segment(segment: Segment, path: str) -> SegmentInfo:
    """Describe a segment."""
    return SegmentInfo(
        id=segment.id,
        path=path,
        first=segment.first,
        last=segment.last,
        count=segment.count,
        bytes=segment.bytes,
        body_bytes=segment.body_bytes,
        first_time=segment.first_time,
        last_time=segment.last_time,
        schema_version=segment.schema_version,
        crc32=segment.crc32,
        groups=segment.groups,
        footer_bytes=segment.footer_bytes,
        footer_crc32=segment.footer_crc32,
    )


def why_unsealed(stream: StreamQueue) -> str | None:
    """Return the reason why the stream is not sealed, or None if it is."""
    if stream.sealing is not None:
        return None
    return stream.broker.unsealed or "'streams.sealing' is false"


def find(context: Context, request: NamedInVhost) -> StreamQueue:
    """Return the stream with this name. Raises `NotFound`."""
    vhost = context.vhost(request.vhost)
    queue = vhost.find_queue(request.name)
    stream = None if queue is None else vhost.streams.get(queue.id)
    if stream is None:
        if queue is not None:
            raise NotFound(f"queue '{request.name}' in vhost '{request.vhost}' is not a stream")
        raise NotFound(f"stream '{request.name}' does not exist in vhost '{request.vhost}'")
    return stream


def list_streams(context: Context, request: InVhost) -> Iterator[StreamInfo]:
    """List streams."""
    for vhost in context.vhosts(request.vhost):
        for stream in vhost.streams.walk():
            yield describe(stream)


def show(context: Context, request: NamedInVhost) -> StreamInfo:
    """Return a stream."""
    return describe(find(context, request))


def list_supers(context: Context, request: InVhost) -> Iterator[SuperStreamInfo | None]:
    """List super streams with the totals of their partitions."""
    for vhost in context.vhosts(request.vhost):
        for exchange in list(vhost.exchanges.values()):
            yield None
            streams = partitions(vhost, exchange.name) if exchange.partitions else []
            if streams:
                yield SuperStreamInfo(
                    vhost=vhost.name,
                    name=exchange.name,
                    partitions=len(streams),
                    messages=sum(stream.ready_count for stream in streams),
                    octets=sum(stream.ready_bytes for stream in streams),
                    readers=sum(len(stream.readers) for stream in streams),
                    consumers=len({name for stream in streams for name in stream.tracking.progress}),
                )


def consumers(context: Context, request: NamedInVhost) -> Iterator[StreamConsumerInfo]:
    """List the named consumers of a stream, or of all partitions of a super stream, with their positions and lag."""
    vhost = context.vhost(request.vhost)
    exchange = vhost.exchanges.get(request.name)
    streams: list[StreamQueue] = []
    if request.name not in vhost.queues and exchange is not None and exchange.partitions:
        streams = sorted(partitions(vhost, request.name), key=lambda stream: stream.name)
    if not streams:
        streams = [find(context, request)]
    return (item for stream in streams for item in _consumers_of(stream))


def list_consumers(context: Context, request: InVhost) -> Iterator[StreamConsumerInfo | None]:
    """List the named consumers of all streams, with their positions and lag."""
    for vhost in context.vhosts(request.vhost):
        for stream in vhost.streams.walk():
            yield None
            yield from _consumers_of(stream)


def _consumers_of(stream: StreamQueue) -> Iterator[StreamConsumerInfo]:
    return (_describe_consumer(stream, name, progress.next) for name, progress in sorted(stream.tracking.progress.items()))


def _describe_consumer(stream: StreamQueue, name: str, position: int) -> StreamConsumerInfo:
    """Describe a named consumer that resumes at an offset, -1 if it has stored none."""
    found = StreamConsumerInfo(
        vhost=stream.vhost.name,
        stream=stream.name,
        consumer=name,
        next_offset=None,
        lag=None,
        lag_bytes=None,
        lag_seconds=None,
        reading=name in stream.named,
    )
    if position >= 0:
        unread = stream.unread(position)
        found.next_offset, found.lag, found.lag_bytes = position, unread.count, unread.bytes
        found.lag_seconds = _age(stream, unread)
    return found


def _age(stream: StreamQueue, unread: Unread) -> float:
    return unread.age(stream.broker.timers.unix()) / 1000


def set_offset(context: Context, request: Offset) -> None:
    """Set or delete the position of a consumer. Raises `PreconditionFailed` while the consumer is reading."""
    stream = find(context, request)
    if request.consumer in stream.named:
        raise PreconditionFailed(f"consumer '{request.consumer}' is reading stream '{request.name}': stop it first")
    if request.offset is None and request.consumer not in stream.tracking.progress:
        raise NotFound(f"stream '{request.name}' has no consumer '{request.consumer}'")
    stream.tracking.set_offset(request.consumer, request.offset)


def partitions(vhost: Vhost, name: str) -> list[StreamQueue]:
    """Return the partitions of a super stream. Raises `NotFound`."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or not exchange.partitions:
        raise NotFound(f"no super stream '{name}' in vhost '{vhost.name}'")
    found = [vhost.streams.get(binding.destination.id) for binding in exchange.bindings()]
    return [stream for stream in found if stream is not None]


async def add_super(context: Context, request: AddSuper) -> SuperStream:
    """Declare a super stream: an exchange that distributes messages over streams by routing key.

    Existing parts must be equivalent. A larger number of partitions adds the missing ones. The broker serves other clients
    in between.
    """
    vhost = context.vhost(request.vhost)
    name = request.name
    vhost.declare_exchange(name, ConsistentHashExchange.type, durable=True)
    wanted = {**request.arguments, "x-queue-type": "stream"}
    names = [f"{name}-{number}" for number in range(request.partitions)]
    bound = {stream.name for stream in partitions(vhost, name)}
    for number, partition in enumerate(names):
        if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
            await asyncio.sleep(0)
        queue = vhost.declare_queue(partition, None, durable=True, arguments=wanted)
        if partition not in bound:
            vhost.bind(queue, name, "1", {})
    return SuperStream(name=name, partitions=names)


def delete_super(context: Context, request: NamedInVhost) -> Messages:
    """Delete a super stream and all its partitions, and return its number of messages."""
    vhost = context.vhost(request.vhost)
    streams = partitions(vhost, request.name)
    vhost.delete_exchange(request.name)
    return Messages(messages=sum(vhost.remove_queue(stream) for stream in streams))


def find_readable(context: VhostContext, name: str) -> StreamQueue:
    """Return a stream. Raises `NotFound` or `PreconditionFailed`."""
    queue = context.vhost.queue(name, context.session)
    stream = context.vhost.streams.get(queue.id)
    if stream is None:
        raise PreconditionFailed(
            f"queue '{plain(name)}' in vhost '{context.vhost.name}' is not a stream, but a {queue.settings.type} queue"
        )
    return stream


def describe_super(context: VhostContext, request: Super) -> Partitions:
    """Return the partitions of a super stream in numerical order."""
    streams = partitions(context.vhost, request.name)
    for stream in streams:
        context.check("read", stream.name)
    prefix = request.name + "-"

    def number(name: str) -> tuple[int, str]:
        rest = name.removeprefix(prefix)
        return (int(rest) if rest.isdecimal() else len(streams), name)

    return Partitions(partitions=sorted((plain(stream.name) for stream in streams), key=number))


class Matching(Job):
    """Job that matches stream names against a client's pattern, with at most `MAX_MATCH_WORK` per step.

    Args:
        context: The context of the request.
        pattern: The pattern.
        names: The names to match.
        later: Resolved with the matching names that the user may read.
    """

    def __init__(self, context: VhostContext, pattern: Pattern, names: list[str], later: Later[StreamNames]) -> None:
        super().__init__(context.vhost.broker.jobs)
        self.context = context
        self.pattern = pattern
        self.names = names
        self.later = later
        self.at = 0
        self.found: list[str] = []

    def step(self) -> bool:
        work = 0
        while self.at < len(self.names) and work < MAX_MATCH_WORK:
            name = self.names[self.at]
            self.at += 1
            work += MATCH_BASE_WORK + self.pattern.cost * len(name)
            if self.pattern.matches(name) and name in self.context.vhost.queues and self.context.may("read", name):
                self.found.append(name)
        if self.at < len(self.names):
            return True
        self.later.answer(StreamNames(streams=sorted(map(plain, self.found))))
        return False

    def failed(self) -> None:
        self.later.fail(BrokerError(INTERNAL_ERROR))


def match(context: VhostContext, request: Match) -> Later[StreamNames]:
    """Return the streams that the user may read and whose full names match."""
    try:
        pattern = Pattern(request.pattern, whole=True)
    except ValueError as error:
        raise PreconditionFailed(f"pattern {request.pattern[:80]!r} {error}") from None
    later = Later[StreamNames]()
    context.vhost.broker.jobs.run_steps(
        _matching(context, pattern, later), None, partial(later.fail, BrokerError(INTERNAL_ERROR))
    )
    return later


def _matching(context: VhostContext, pattern: Pattern, later: Later[StreamNames]) -> Iterator[int]:
    """Collect the streams of the vhost in steps, then match their names."""
    vhost = context.vhost
    names: list[str] = []
    for stream in vhost.streams.walk():
        names.append(stream.name)
        yield 1
    if len(names) > MAX_MATCHED:
        later.fail(
            PreconditionFailed(
                f"vhost '{vhost.name}' has {len(names)} streams; expected at most {MAX_MATCHED} for a pattern"
            )
        )
        return
    Matching(context, pattern, names, later).resume()


def describe_to_reader(context: VhostContext, request: Describe) -> StreamDescription:
    """Describe a stream to a reader."""
    stream = find_readable(context, request.stream)
    found = StreamDescription(
        id=stream.uid, first_offset=stream.first_offset, next_offset=stream.visible_until - 1, octets=stream.ready_bytes
    )
    if request.segments:
        first = 0 if request.first is None else request.first
        found.segments = _entries(
            stream,
            [
                segment
                for segment in stream.segments
                if segment.last >= first and (request.last is None or segment.first <= request.last)
            ],
        )
    return found


def hold(context: VhostContext, request: Hold) -> Pinned:
    """Pin the files with offsets from first to last (inclusive), until they are released or the time has passed."""
    stream = find_readable(context, request.stream)
    until = stream.broker.timers.now() + int(request.seconds * 1000)
    return Pinned(segments=_entries(stream, stream.hold(request.holder, request.first, request.last, until)))


def release(context: VhostContext, request: Release) -> Released:
    """Release pinned files. Returns the number of messages that readers of this holder reported as lost."""
    stream = find_readable(context, request.stream)
    stream.release(request.holder)
    lost = stream.tracking.count_lost(request.holder)
    if not request.keep_losses:
        stream.tracking.forget_lost(request.holder)
    return Released(lost=lost)


def lose(context: VhostContext, request: Lost) -> Reply:
    """Record messages that retention removed before a reader read them. Duplicate reports count once."""
    stream = find_readable(context, request.stream)
    if request.stop <= request.first or request.stop > stream.first_offset:
        raise PreconditionFailed(
            f"offsets {request.first} to {request.stop - 1} of stream '{plain(stream.name)}' are"
            f" not lost: its first offset is {stream.first_offset}"
        )
    stream.tracking.note_lost(request.holder, request.first, request.stop)
    return Reply()


def _entries(stream: StreamQueue, segments: Iterable[Segment]) -> list[SegmentInfo]:
    """Return the manifest entries of segments, with paths for readers."""
    hub = stream.broker.segments
    return [] if hub is None else [describe_segment(segment, hub.url_of(segment.path)) for segment in segments]


def locate(context: VhostContext, request: Locate) -> Position:
    """Return an offset at or before the first message appended at a time (in milliseconds since 1970) or later."""
    return Position(offset=find_readable(context, request.stream).offset_at(request.timestamp))


def start(context: VhostContext, request: ConsumerAt) -> Registered:
    """Register a consumer. The first call sets its start offset."""
    stream = find_readable(context, request.stream)
    _check_end(stream, request.offset)
    progress, registered = stream.tracking.register(request.consumer, request.offset)
    return Registered(offset=progress.start, registered=registered, committed=progress.next)


def commit(context: VhostContext, request: ConsumerAt) -> Position:
    """Advance the position of a consumer to an offset. The position never moves back."""
    stream = find_readable(context, request.stream)
    _check_end(stream, request.offset)
    return Position(offset=stream.tracking.advance(request.consumer, request.offset).next)


def lag(context: VhostContext, request: LagOf) -> Lag:
    """Return the number, bytes and age of the retained messages that a consumer, or a reader at an offset, has not read."""
    stream = find_readable(context, request.stream)
    position = request.offset
    if request.consumer is not None:
        progress = stream.tracking.progress.get(request.consumer)
        if progress is None or progress.next < 0:
            raise NotFound(f"stream '{plain(stream.name)}' has no consumer '{request.consumer}'")
        position = progress.next
    assert position is not None
    unread = stream.unread(position)
    return Lag(
        id=stream.uid,
        next_offset=position,
        end=stream.visible_until - 1,
        lag=unread.count,
        bytes=unread.bytes,
        seconds=_age(stream, unread),
    )


def _check_end(stream: StreamQueue, offset: int) -> None:
    end = stream.visible_until - 1
    if offset > end:
        raise PreconditionFailed(
            f"offset {offset} is beyond the end of stream '{plain(stream.name)}', which is {end}: it"
            " belongs to another stream, or to a deleted one"
        )


READ: Final = Right("read", "stream")

OPERATIONS: Operations = {
    "streams.list": Operation(list_streams, InVhost, StreamInfo),
    "streams.list_supers": Operation(list_supers, InVhost, SuperStreamInfo),
    "streams.show": Operation(show, NamedInVhost, StreamInfo),
    "streams.list_consumers": Operation(list_consumers, InVhost, StreamConsumerInfo),
    "streams.consumers": Operation(consumers, NamedInVhost, StreamConsumerInfo),
    "streams.set_offset": Operation(set_offset, Offset, changes=True),
    "streams.add_super": Operation(add_super, AddSuper, SuperStream, changes=True),
    "streams.delete_super": Operation(delete_super, NamedInVhost, Messages, changes=True),
}
VHOST_OPERATIONS: VhostOperations = {
    "superstream.describe": VhostOperation(describe_super, Super, Partitions, EACH),
    "stream.match": VhostOperation(match, Match, StreamNames, EACH),
    "stream.describe": VhostOperation(describe_to_reader, Describe, StreamDescription, READ),
    "stream.hold": VhostOperation(hold, Hold, Pinned, READ),
    "stream.release": VhostOperation(release, Release, Released, READ),
    "stream.lost": VhostOperation(lose, Lost, Reply, READ),
    "stream.locate": VhostOperation(locate, Locate, Position, READ),
    "stream.start": VhostOperation(start, ConsumerAt, Registered, READ),
    "stream.commit": VhostOperation(commit, ConsumerAt, Position, READ),
    "stream.lag": VhostOperation(lag, LagOf, Lag, READ),
}

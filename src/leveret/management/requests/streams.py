"""superstream.describe and stream.*: metadata of streams, file pins, and positions of consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from leveret.broker.errors import MISTAKE, BrokerError, NotFound, PreconditionFailed
from leveret.broker.jobs import Job
from leveret.broker.streams.queue import StreamQueue
from leveret.management.calls import plain
from leveret.management.requests.operation import Arguments, Asked, Fields, Later, Operation
from leveret.management.streams import partitions
from leveret.security.patterns import Pattern

if TYPE_CHECKING:
    from leveret.broker.segments import Segment

# Names to match with a pattern.
MAX_MATCHED: Final = 100_000
# Steps of matching in one turn of the event loop, each some nanoseconds; and the base cost of each name.
MAX_MATCH_WORK: Final = 400_000
MATCH_BASE_WORK: Final = 1_000
# Seconds that a call may pin files; to pin them longer, call again.
MAX_PIN: Final = 86_400

Offset = Annotated[int, Meta(ge=0, le=(1 << 62))]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Super(Arguments, kw_only=True):
    name: str


class Match(Arguments, kw_only=True):
    pattern: str


class Describe(Arguments, kw_only=True):
    """`first` and `last` (inclusive) select the segments that contain any of these offsets."""

    stream: str
    segments: bool = False
    first: Offset | None = None
    last: Offset | None = None


class Held(Arguments, kw_only=True):
    stream: str
    holder: Name


class Hold(Held, kw_only=True):
    first: Offset
    last: Offset
    seconds: Annotated[float, Meta(gt=0, le=MAX_PIN)]


class Lost(Held, kw_only=True):
    """`stop` is the offset after the last one."""

    first: Offset
    stop: Offset


class Locate(Arguments, kw_only=True):
    stream: str
    timestamp: Annotated[int, Meta(ge=0)]


class Consumer(Arguments, kw_only=True):
    stream: str
    consumer: Name


class ConsumerAt(Consumer, kw_only=True):
    offset: Offset


def find(asked: Asked, name: str) -> StreamQueue:
    """Return a stream that the user may read. Raises `AccessRefused`, `NotFound` or `PreconditionFailed`."""
    asked.check("read", name)
    queue = asked.vhost.queue(name, asked.session)
    stream = queue.as_stream()
    if stream is None:
        raise PreconditionFailed(f"queue '{plain(name)}' in vhost '{asked.vhost.name}' is not a stream, but a"
                                 f" {queue.settings.type} queue")
    return stream


def describe_super(asked: Asked, arguments: Super) -> Fields:
    """Return the partitions of a super stream in the order of their numbers."""
    streams = partitions(asked.vhost, arguments.name)
    for stream in streams:
        asked.check("read", stream.name)
    prefix = arguments.name + "-"

    def number(name: str) -> tuple[int, str]:
        rest = name.removeprefix(prefix)
        return (int(rest) if rest.isdecimal() else len(streams), name)

    return {"partitions": sorted((plain(stream.name) for stream in streams), key=number)}


class Matching(Job):
    """Matches the names of streams with a client's pattern, limited to `MAX_MATCH_WORK` per step.

    Args:
        asked: The requester.
        pattern: The pattern.
        names: The names to match.
        later: Resolved with the names that match and that the user may read.
    """

    def __init__(self, asked: Asked, pattern: Pattern, names: list[str], later: Later) -> None:
        super().__init__(asked.vhost.broker.jobs)
        self.asked = asked
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
            if self.pattern.matches(name) and name in self.asked.vhost.queues and self.asked.may("read", name):
                self.found.append(name)
        if self.at < len(self.names):
            return True
        self.later.answer({"streams": sorted(map(plain, self.found))})
        return False

    def failed(self) -> None:
        self.later.fail(BrokerError(MISTAKE))


def match(asked: Asked, arguments: Match) -> Later:
    """Return the streams that the user may read and whose full name matches."""
    try:
        pattern = Pattern(arguments.pattern, whole=True)
    except ValueError as error:
        raise PreconditionFailed(f"pattern {arguments.pattern[:80]!r} {error}") from None
    names = [queue.name for queue in asked.vhost.queues.values() if queue.replayable]
    if len(names) > MAX_MATCHED:
        raise PreconditionFailed(f"vhost '{asked.vhost.name}' has {len(names)} streams; expected at most {MAX_MATCHED} for"
                                 " a pattern")
    later = Later()
    Matching(asked, pattern, names, later).resume()
    return later


def describe(asked: Asked, arguments: Describe) -> Fields:
    """Describe a stream. `id` is unique forever; `next_offset` is the offset of the next message."""
    stream = find(asked, arguments.stream)
    fields: Fields = {"id": stream.uid, "first_offset": stream.first_offset,
                      "next_offset": stream.visible_until - 1}
    fields["octets"] = stream.ready_bytes
    if arguments.segments:
        first = 0 if arguments.first is None else arguments.first
        fields["segments"] = _entries(stream, [
            segment for segment in stream.segments
            if segment.last >= first and (arguments.last is None or segment.first <= arguments.last)])
    return fields


def hold(asked: Asked, arguments: Hold) -> Fields:
    """Pin the files with offsets from first to last (inclusive), for a number of seconds or until they are released."""
    stream = find(asked, arguments.stream)
    until = stream.broker.timers.now() + int(arguments.seconds * 1000)
    return {"segments": _entries(stream, stream.hold(arguments.holder, arguments.first, arguments.last, until))}


def release(asked: Asked, arguments: Held) -> Fields:
    """Release pinned files. `lost` is the number of messages that readers of this holder have reported as lost."""
    stream = find(asked, arguments.stream)
    stream.release(arguments.holder)
    return {"lost": stream.tracking.take_lost(arguments.holder)}


def lose(asked: Asked, arguments: Lost) -> Fields:
    """Report messages that retention removed before a reader read them. The same may be reported twice."""
    stream = find(asked, arguments.stream)
    if arguments.stop <= arguments.first or arguments.stop > stream.first_offset:
        raise PreconditionFailed(f"offsets {arguments.first} to {arguments.stop - 1} of stream '{plain(stream.name)}' are"
                                 f" not lost: its first offset is {stream.first_offset}")
    stream.tracking.note_lost(arguments.holder, arguments.first, arguments.stop)
    return {}


def _entries(stream: StreamQueue, segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return the manifest entries of segments, with paths for readers."""
    hub = stream.broker.segments
    return [] if hub is None else [{**segment.entry(), "path": hub.url_of(segment.path)} for segment in segments]


def locate(asked: Asked, arguments: Locate) -> Fields:
    """Return an offset at or before the first message appended at a time (in milliseconds since 1970) or later."""
    return {"offset": find(asked, arguments.stream).offset_at(arguments.timestamp)}


def start(asked: Asked, arguments: ConsumerAt) -> Fields:
    """Register a consumer. The first call sets its start offset; `committed` is the offset to resume from."""
    stream = find(asked, arguments.stream)
    _check_end(stream, arguments.offset)
    progress, registered = stream.tracking.register(arguments.consumer, arguments.offset)
    return {"offset": progress.start, "registered": registered, "committed": progress.next}


def commit(asked: Asked, arguments: ConsumerAt) -> Fields:
    """Advance the position of a consumer to an offset; it never moves back."""
    stream = find(asked, arguments.stream)
    _check_end(stream, arguments.offset)
    return {"offset": stream.tracking.advance(arguments.consumer, arguments.offset).next}


def lag(asked: Asked, arguments: Consumer) -> Fields:
    """Return the number of retained messages that a consumer has not read."""
    stream = find(asked, arguments.stream)
    progress = stream.tracking.progress.get(arguments.consumer)
    if progress is None or progress.next < 0:
        raise NotFound(f"stream '{plain(stream.name)}' has no consumer '{arguments.consumer}'")
    end = stream.visible_until - 1
    return {"next_offset": progress.next, "end": end, "lag": max(end - max(progress.next, stream.first_offset), 0)}


def _check_end(stream: StreamQueue, offset: int) -> None:
    end = stream.visible_until - 1
    if offset > end:
        raise PreconditionFailed(f"offset {offset} is behind the end of stream '{plain(stream.name)}', which is {end}: it"
                                 " belongs to another stream, or to one that was deleted since")


OPERATIONS = {
    "superstream.describe": Operation(describe_super, Super),
    "stream.match": Operation(match, Match),
    "stream.describe": Operation(describe, Describe),
    "stream.hold": Operation(hold, Hold),
    "stream.release": Operation(release, Held),
    "stream.lost": Operation(lose, Lost),
    "stream.locate": Operation(locate, Locate),
    "stream.start": Operation(start, ConsumerAt),
    "stream.commit": Operation(commit, ConsumerAt),
    "stream.lag": Operation(lag, Consumer),
}

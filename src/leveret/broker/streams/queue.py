"""A stream: a queue whose readers remove nothing (`x-queue-type: stream`).

Messages are appended and stay until retention removes the oldest (`x-max-length-bytes`, `x-max-age`,
`x-stream-max-segments`): the newest chunks in the log, older ones in sealed segments. Any number of readers read them,
each from its own position and as fast as its credit allows; an acknowledgement only grants credit. A message is visible
once it is committed, so that an offset that a reader has seen is never reused. The offset of a message is its sequence
number less one.

A reader's position is a chunk and a sequence number. A chunk that is not in memory is read once for all readers that wait
for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker import metadata, settlement
from leveret.broker.arguments import (
    DEDUPLICATION,
    DEDUPLICATION_WINDOW,
    INTERVAL,
    RETRY_DELAYS,
    WHOLE,
    Argument,
    QueueSettings,
    parse_consumer_arguments,
)
from leveret.broker.consumer import Consumer
from leveret.broker.errors import PreconditionFailed, Undelivered
from leveret.broker.jobs import STEP_WORK
from leveret.broker.leases import reading as lease_reading
from leveret.broker.leases.leases import Leases
from leveret.broker.log import CommitWaiter, Loaded
from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.outcomes import ACCEPTED, REJECTED, RELEASED, protocol_of
from leveret.broker.queues.capabilities import BROWSE, GET, LEASE, PURGE
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.queues.record_batches import PACKED, UNTIL
from leveret.broker.queues.rings import Rings
from leveret.broker.streams.cache import ChunkCache
from leveret.broker.streams.chunks import CHUNK_TIME, SEALED_CHUNK_TIME, PendingRun, StreamChunk
from leveret.broker.streams.erasing import Erasing, Rules
from leveret.broker.streams.filters import StreamFilter
from leveret.broker.streams.inspection import StreamInspection
from leveret.broker.streams.offsets import FIRST, LAST, StartingPoint, starting_point
from leveret.broker.streams.reading import Reader
from leveret.broker.streams.sealed import SealedPart
from leveret.broker.streams.sealing import Sealing
from leveret.broker.streams.tracking import PUBLISHER_BYTES, Tracking, name_of
from leveret.broker.streams.unread import Unread
from leveret.broker.timers import Timed
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.leases.recovery import Restoring
    from leveret.broker.log import RecoveredQueue, Recovery, Row
    from leveret.broker.metadata import Record
    from leveret.broker.queues.definition import QueueDefinition
    from leveret.broker.queues.sink_transaction import TransactionChunk
    from leveret.broker.segments import Segment
    from leveret.broker.streams.recovery import StreamRecords

OFFSET: Final = "x-stream-offset"
# Units of work of a declaration.
STREAM_WORK: Final = 60


class _Appended(CommitWaiter):
    """Makes appends visible once they are on disk."""

    def __init__(self, stream: StreamQueue) -> None:
        self.stream = stream

    def committed(self, batch: int) -> None:
        self.stream.show(batch)


class _Load:
    """Reads a chunk back into memory."""

    def __init__(self, stream: StreamQueue, chunk: StreamChunk) -> None:
        self.stream = stream
        self.chunk = chunk

    def done(self, loaded: list[Loaded]) -> None:
        self.stream.loaded(self.chunk, loaded)


class _Aging(Timed):
    """Timer for the time at which the oldest chunk reaches `x-max-age`."""

    def __init__(self, stream: StreamQueue) -> None:
        super().__init__()
        self.stream: StreamQueue | None = stream

    def fire(self, now: int) -> None:
        if self.stream is not None:
            self.stream.retain(now)


class StreamQueue(Queue):
    """One stream of one vhost.

    sealed    the segments, and their chunks in use
    chunks    the visible chunks after the segments, oldest first
    pending   appended messages that are not committed yet, in runs
    shown_from  the first message of the latest commit; 0 before the first one since the start
    cache     the chunks whose messages are in memory
    rings     the consumers, and whose turn it is
    readers   by consumer
    tracking  offsets of named consumers, sequence numbers of named publishers
    newest_time  append time of the newest message
    count, bytes  of the messages in `chunks`, and of their bodies
    named     readers with tracked offsets, by name
    awaiting  callbacks of walks that wait for a chunk to be loaded
    sealing   None if the stream stays unsealed
    erasing   the latest erasure, None if there was none since the start
    """

    unsupported: ClassVar[dict[str, str]] = {
        GET: "a stream, which is not read by basic.get: consume from it",
        PURGE: "a stream, which is not purged: its retention is set by 'x-max-length-bytes', 'x-max-age' and"
        " 'x-stream-max-segments'",
        BROWSE: "a stream, whose consumers always browse",
        LEASE: "a stream; read it by offsets",
    }
    replayable: ClassVar[bool] = True

    def __init__(self, definition: QueueDefinition) -> None:
        super().__init__(definition)
        settings = definition.settings
        self.sealed = SealedPart(self)
        self.sealing: Sealing | None = None
        self.erasing: Erasing | None = None
        self.chunk_time = CHUNK_TIME
        self.newest_time = 0
        self.max_segments = -1 if settings.max_segments is None else settings.max_segments
        self.chunks: deque[StreamChunk] = deque()
        self.pending: deque[PendingRun] = deque()
        self.shown_from = 0
        # Row of the log with the latest append.
        self.latest: Row | None = None
        self.cache = ChunkCache(self.broker)
        self.paging = self.cache
        self.rings = Rings(self.broker, settings.single_active_consumer)
        self.readers: dict[Consumer, Reader] = {}
        # Units of work of a turn above which no reader is served.
        self.max_work = 0
        self.tracking = Tracking(self.log, self.id)
        self.named: dict[str, Reader] = {}
        self.awaiting: list[Callable[[], None]] = []
        self.count = 0
        self.bytes = 0
        self.awaited = 0
        self.duplicates = 0
        self.waiter = _Appended(self)
        self.aging: _Aging | None = None
        self._read_retention(settings)
        self.broker.work += STREAM_WORK
        hub = self.broker.segments
        if hub is None:
            self.broker.note_unsealed()
        elif hub.settings.sealing:
            self.sealing = Sealing(self, hub)
            self.chunk_time = SEALED_CHUNK_TIME
        self.vhost.streams.add(self)

    def _read_retention(self, settings: QueueSettings) -> None:
        self.max_age = -1 if settings.max_age is None else settings.max_age
        self.max_bytes = -1 if settings.max_length_bytes is None else settings.max_length_bytes

    def configure(self, settings: QueueSettings) -> None:
        super().configure(settings)
        self._read_retention(settings)
        if self.sealing is not None:
            self.sealing.configure()

    def reconfigured(self) -> None:
        now = self.broker.timers.now()
        self.retain(now)
        if self.sealing is not None:
            self.sealing.check(now)

    def recover(self, record: Record, recovery: Recovery, leases: Restoring, streams: StreamRecords) -> None:
        super().recover(record, recovery, leases, streams)
        streams.restore(self)

    def restore_segments(self, segments: list[Segment]) -> None:
        """Restore the segments of the manifest, oldest first."""
        for segment in segments:
            self.sealed.add(segment)
            self.next_seq = segment.last + 2
            self.newest_time = segment.last_time

    def restore_chunks(self, recovered: RecoveredQueue, records: dict[int, Record]) -> None:
        """Restore the chunks of the log, after the segments.

        `records` has the record of each chunk by the sequence number of its first message. Sealed messages whose trim was
        interrupted are trimmed now.
        """
        segments = self.sealed.segments
        sealed = segments[len(segments) - 1].last + 1 if segments else 0
        seqs = recovered.seqs
        begin = bisect_right(seqs, sealed)
        if begin:
            self.log.settle_range(self.id, seqs[0], seqs[begin - 1], (), recovered.rows[:begin], recovered.slots[:begin])
        for first in records:
            if first <= sealed:
                self._delete_record(first)
        if begin == len(seqs):
            return
        self.next_seq = seqs[len(seqs) - 1] + 1
        now = self.broker.timers.unix()
        chunk: StreamChunk | None = None
        # Sequence number after a chunk that was moved here.
        moved = 0
        for index in range(begin, len(seqs)):
            seq = seqs[index]
            record = records.get(seq)
            if chunk is None or record is not None or chunk.end != seq or seq == moved:
                begun = -1 if record is None else int(record["time"])
                # After a crash, the time of a new chunk may be missing: no message may appear older than it is.
                following = StreamChunk(seq, begun if begun >= 0 else now if chunk is None else chunk.time, chunk)
                # The time of the last append is unknown, but no later than this limit of a chunk.
                following.last = max(min(following.time + CHUNK_TIME, now), following.time)
                if record is not None and "queue" in record:
                    following.source = record["queue"]
                    following.source_first = record["first"]
                    following.closed = True
                    moved = seq + int(record["count"])
                if chunk is not None:
                    # The time of moved messages may be that before their commit.
                    following.time = max(following.time, chunk.time)
                    following.last = max(following.last, following.time)
                    chunk.last = max(min(chunk.last, following.time), chunk.time)
                    chunk.following = following
                chunk = following
                self.chunks.append(chunk)
            size = recovered.sizes[index]
            chunk.rows.append(recovered.rows[index])
            chunk.slots.append(recovered.slots[index])
            chunk.sizes.append(size)
            chunk.count += 1
            chunk.bytes += size
            self.bytes += size
        self.count += len(seqs) - begin
        if chunk is not None:
            self.newest_time = max(self.newest_time, chunk.time)

    def start(self) -> None:
        hub = self.broker.segments
        if hub is not None:
            hub.changed(self)
        now = self.broker.timers.now()
        self.retain(now)
        if self.sealing is not None:
            self.sealing.check(now)

    # Statistics

    @property
    def ready_count(self) -> int:
        return self.count + self.sealed.count

    @property
    def ready_bytes(self) -> int:
        return self.bytes + self.sealed.bytes

    @property
    def first_offset(self) -> int:
        """Return the offset of the oldest message; of the next one if the stream is empty."""
        segments = self.sealed.segments
        if segments:
            return segments[0].first
        return self.chunks[0].first - 1 if self.chunks else self.visible_until - 1

    @property
    def uid(self) -> str:
        """Return an identifier that no other stream has had, even if this one is deleted and declared again."""
        return f"{self.broker.identity}-{self.id}"

    @property
    def segments(self) -> list[Segment]:
        """Return the segments, oldest first."""
        return self.sealed.segments

    @property
    def visible_until(self) -> int:
        """Return the sequence number after the last visible message."""
        return self.pending[0].first if self.pending else self.next_seq

    def unread(self, offset: int) -> Unread:
        """Return the messages from an offset on. Reads nothing: sealed parts are estimated by their manifest."""
        end = self.visible_until - 1
        start = max(offset, self.first_offset)
        if start >= end:
            return Unread(0, 0, -1)
        segments = self.sealed.segments
        chunks = self.chunks
        if segments and start <= segments[len(segments) - 1].last:
            found = self.sealed.unread(start)
            return Unread(end - start, found.bytes + self.bytes, found.since)
        index = self._chunk_index(start + 1)
        if index == len(chunks):  # the rest was erased
            return Unread(0, 0, -1)
        chunk = chunks[index]
        seq = max(start + 1, chunk.first)
        newest = chunks[len(chunks) - 1]
        later = newest.before + newest.bytes - chunk.before - chunk.bytes
        return Unread(end - start, chunk.bytes_from(seq) + later, chunk.estimated_time(seq))

    # Appends

    def push(self, message: Message) -> bool:
        self.prepare(message)
        return True

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """Append a message, visible once it is committed. Does nothing if its publisher has already sent it."""
        if PUBLISHER_BYTES in message.header and self.tracking.is_duplicate(self.broker.decode_headers(message)):
            if self.pending and message.row is None:
                # The earlier append may not be on disk yet, and this one has no record, so both are confirmed with the same
                # commit.
                message.row = self.latest
                message.slot = -1
            self.duplicates += 1
            return Entry(self, message, -self.duplicates)  # a unique number, by which transactions identify entries
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        batch = self.log.filling
        self.log.store(entry)
        self.counters.count_published(1)
        if self.watch is not None:
            self.watch.routed(entry)
        run = self._pending_run(seq, batch)
        if overlay is not None:
            run.overlays[seq] = overlay
        row = self.latest = entry.row
        assert row is not None
        run.add(message, row.id, entry.slot)
        return entry

    def push_run(self, messages: list[Message], first: int, stop: int) -> int:
        if self.watch is not None:
            return first
        # Messages with equal properties often have the same header.
        header = b""
        for index in range(first, stop):
            message = messages[index]
            if message.header is not header:
                header = message.header
                if PUBLISHER_BYTES in header:
                    stop = index
                    break
        if stop == first:
            return first
        seq = self.next_seq
        self.next_seq = seq + stop - first
        batch = self.log.filling
        self.log.store_run(self, messages, first, stop, seq)
        self.counters.count_published(stop - first)
        self._pending_run(seq, batch).add_run(messages[first:stop])
        self.latest = messages[stop - 1].row
        return stop

    def _pending_run(self, seq: int, batch: int) -> PendingRun:
        """Return the run for appends from a sequence number on, which are in the log commit that is being filled."""
        pending = self.pending
        if pending:
            last = pending[len(pending) - 1]
            if last.batch == batch and last.end == seq and not last.source:
                return last
        return self._begin_run(seq, batch)

    def _begin_run(self, seq: int, batch: int) -> PendingRun:
        run = PendingRun(seq, batch)
        self.pending.append(run)
        if batch != self.awaited:
            self.awaited = batch
            self.log.wait(self.waiter)
        return run

    def take_over(self, source: int, chunk: TransactionChunk) -> bool:
        if self.watch is not None:
            return False
        run = self._begin_run(self.next_seq, self.log.filling)
        run.source = source
        run.source_first = chunk.first
        run.rows = chunk.rows
        run.slots = chunk.slots
        run.sizes = chunk.sizes
        run.bytes = chunk.bytes
        run.messages = chunk.messages
        self.next_seq = run.end
        self.counters.count_published(len(run.sizes))
        # The only record of the move. The messages get their time when they become visible.
        time = self._next_time(self.broker.timers.now())
        self._put_chunk(run.first, time, source, chunk.first, len(run.sizes))
        return True

    def retract(self, entry: Entry) -> None:
        # Offsets have no gaps, so the message stays if others were appended after it.
        pending = self.pending
        if not pending or entry.seq + 1 != self.next_seq:
            return
        run = pending[len(pending) - 1]
        run.retract()
        if not run.sizes:
            pending.pop()
        self.next_seq = entry.seq
        self.counters.count_retracted()
        settlement.settle(entry)

    def insert_new(self, entry: Entry) -> None:
        """Make a prepared entry visible."""

    def show(self, batch: int) -> None:
        """Make messages up to this batch visible: it is on disk."""
        pending = self.pending
        if self.deleted or not pending:
            return
        now = self.broker.timers.now()
        time = self.newest_time = self._next_time(now)
        chunk = self.chunks[len(self.chunks) - 1] if self.chunks else None
        if pending[0].batch <= batch:
            self.shown_from = pending[0].first
        while pending and pending[0].batch <= batch:
            run = pending[0]
            if run.source:
                chunk = self._new_chunk(run.first, time, run)
            elif chunk is None or chunk.is_full(time, self.chunk_time) or chunk.end != run.first:
                chunk = self._new_chunk(run.first, time)
            self._fill(chunk, run, time)
            if not run.sizes:
                pending.popleft()
        self._evict(chunk)
        self.retain(now)
        if self.sealing is not None:
            self.sealing.check(now)
        self.activate()
        self.broker.end_turn()

    def _next_time(self, now: int) -> int:
        """Return the append time of messages that become visible now, which never decreases, unlike the system clock."""
        return max(now + self.broker.timers.step, self.newest_time)

    def _fill(self, chunk: StreamChunk, run: PendingRun, now: int) -> None:
        """Move committed messages of a run to a chunk until it is full. A run that was moved here fits into its own one."""
        count = len(run.sizes) if run.source else chunk.fitting(run)
        sizes = run.sizes[:count]
        n_bytes = run.bytes if count == len(run.sizes) else sum(sizes)
        chunk.rows.extend(run.rows[:count])
        chunk.slots.extend(run.slots[:count])
        chunk.sizes.extend(sizes)
        chunk.count += count
        chunk.bytes += n_bytes
        chunk.last = now
        if chunk.messages is not None and run.messages is not None:
            chunk.messages.extend(run.messages[:count])
            for seq in range(run.first, run.first + count) if run.overlays else ():
                overlay = run.overlays.get(seq)
                if overlay is not None:
                    chunk.overlays[seq] = overlay
            self.cache.grow(count, n_bytes)
        self.count += count
        self.bytes += n_bytes
        run.drop(count, n_bytes)

    def _new_chunk(self, first: int, now: int, run: PendingRun | None = None) -> StreamChunk:
        """Add a chunk; with a run, for its messages, which a sink transaction moved here."""
        previous = self.chunks[len(self.chunks) - 1] if self.chunks else None
        chunk = StreamChunk(first, now, previous)
        count = 0
        if run is not None:
            chunk.source = run.source
            chunk.source_first = run.source_first
            chunk.closed = True
            count = len(run.sizes)
        if previous is not None:
            previous.following = chunk
        self.chunks.append(chunk)
        if run is None or run.messages is not None:
            chunk.messages = []
            self.cache.add(chunk)
        self._put_chunk(first, now, chunk.source, chunk.source_first, count)
        return chunk

    def _put_chunk(self, first: int, time: int, source: int, source_first: int, count: int) -> None:
        """Store the record of a chunk: its time and, if it was moved here, where the log has its `count` messages."""
        value: Record = {"time": time}
        if source:
            value.update(queue=source, first=source_first, count=count)
        self.log.put(metadata.STREAM_CHUNK, metadata.make_key(str(self.id), str(first)), metadata.pack(value))

    def _evict(self, keep: StreamChunk | None) -> None:
        for chunk in self.cache.evict(keep):
            if chunk.segment is not None:
                self.sealed.chunks.pop(chunk.first, None)

    # Retention

    def retain(self, now: int) -> None:
        """Drop the oldest segments and chunks beyond the retention limits, but never the newest chunk."""
        chunks = self.chunks
        segments = self.sealed.segments
        timers = self.broker.timers
        while segments:
            segment = segments[0]
            too_much = 0 <= self.max_bytes < self.ready_bytes and (len(segments) > 1 or len(chunks) > 0)
            too_many = 0 <= self.max_segments < len(segments)
            old = self._is_old(timers.from_unix(segment.last_time), now)
            if not (too_much or too_many or old) or segment.id in self.sealed.locked:
                break
            self.sealed.drop_first()
        while chunks and not segments:
            chunk = chunks[0]
            too_much = 0 <= self.max_bytes < self.bytes and len(chunks) > 1
            if not (too_much or self._is_old(timers.from_unix(chunk.last), now)) or chunk.sealing:
                break
            self._drop(chunk)
        if self.max_age >= 0 and (segments or chunks):
            if self.aging is None:
                self.aging = _Aging(self)
            oldest = segments[0].last_time if segments else chunks[0].last
            # Segments that are being sealed or replaced check again afterwards.
            timers.at(max(timers.from_unix(oldest) + self.max_age, now + 1), self.aging)

    def _is_old(self, time: int, now: int) -> bool:
        return self.max_age >= 0 and time <= now - self.max_age

    def _drop(self, chunk: StreamChunk) -> None:
        self.release_oldest(chunk)
        self.trim_chunk(chunk)

    def release_oldest(self, chunk: StreamChunk) -> None:
        """Release the oldest chunk. The caller trims it."""
        self.chunks.popleft()
        self.cache.discard(chunk)
        chunk.dropped = True
        self.count -= chunk.count
        self.bytes -= chunk.bytes

    def trim_chunk(self, chunk: StreamChunk) -> None:
        """Release a chunk from the log."""
        if chunk.count:
            self._settle(chunk.first, chunk.source, chunk.source_first, chunk.rows, chunk.slots)
        self._delete_record(chunk.first)

    def _settle(self, first: int, source: int, source_first: int, rows: array[int], slots: array[int]) -> None:
        """Settle consecutive messages at their positions in the log."""
        if source:
            self.log.settle_range(source, source_first, source_first + len(rows) - 1, (), rows, slots)
        else:
            self.log.settle_range(self.id, first, first + len(rows) - 1, (), rows, slots)

    def _delete_record(self, first: int) -> None:
        self.log.put(metadata.STREAM_CHUNK, metadata.make_key(str(self.id), str(first)), None)

    def swap(self, old: list[Segment], new: list[Segment]) -> bool:
        """Replace sealed segments in one commit, by merged ones or by rewritten ones with the same offsets.

        Returns False if some of the old ones no longer exist. Their files are removed after the grace time.
        """
        return self.sealed.swap(old, new)

    def erase(self, rules: Rules, dry_run: bool, seal: bool) -> Erasing:
        """Start to rewrite the sealed segments by rules, a JSON list for the store.

        With `seal`, all visible messages are sealed first; with `dry_run`, the changes are only counted.

        Raises PreconditionFailed if the broker has no segments, or an erasure of the stream is in progress.
        """
        hub = self.broker.segments
        where = f"stream '{self.name}' in vhost '{self.vhost.name}'"
        if hub is None or (seal and self.sealing is None):
            raise PreconditionFailed(
                f"{where} is not sealed by this broker: its messages are in the log, which erasure"
                " does not reach; see the settings of streams"
            )
        if self.erasing is not None and self.erasing.is_running:
            raise PreconditionFailed(f"an erasure of {where} is in progress: wait until it ends")
        erasing = Erasing(self, hub, rules, dry_run)
        self.erasing = erasing
        erasing.begin(seal)
        return erasing

    # Read leases

    def hold(self, holder: str, first: int, last: int, until: int) -> list[Segment]:
        """Keep the files of the segments with any of these offsets (both inclusive), even if the segments are removed.

        The read lease lasts until a time in milliseconds or until `release`. Calling it again extends the leases of the
        holder. Returns the current segments; none if the broker has no segments.
        """
        hub = self.broker.segments
        if hub is None:
            return []
        found = [segment for segment in self.sealed.segments if segment.first <= last and segment.last >= first]
        hub.leases.hold(self._holder(holder), [segment.path for segment in found], until)
        return found

    def release(self, holder: str) -> None:
        hub = self.broker.segments
        if hub is not None:
            hub.leases.release(self._holder(holder))

    def _holder(self, name: str) -> str:
        return f"{self.uid} {name}"

    # Operators

    def inspect(self) -> StreamInspection:
        return StreamInspection(self)

    # Readers

    def check_consumer(self, arguments: FieldTable, no_ack: bool) -> None:
        """Raise an error for a consumer with an invalid start position, before it joins."""
        if lease_reading.LEASE in arguments:
            Leases.check_reader(self, arguments, no_ack)
        starting_point(arguments.get(OFFSET), 0)
        parse_consumer_arguments({name: arguments[name] for name in (PACKED, UNTIL) if name in arguments}, strict=False)
        if name_of(arguments) is not None and arguments.get(PACKED):
            raise PreconditionFailed(
                f"invalid arg '{PACKED}': a consumer with a name acknowledges messages, not record batches"
            )
        StreamFilter(arguments)

    def add_consumer(self, consumer: Consumer) -> None:
        arguments = consumer.arguments
        reader = Reader(consumer, StreamFilter(arguments))
        start = starting_point(arguments.get(OFFSET), self.broker.timers.unix())
        name = name_of(arguments)
        if name is not None:
            reader.name = name
            progress = reader.progress = self.tracking.start(name)
            if progress.next >= 0:
                start = StartingPoint(offset=progress.next)
            before = self.named.get(name)
            if before is not None:
                before.progress = None  # only the newest reader of a name is tracked
            self.named[name] = reader
        self._place(reader, start)
        reader.packed = arguments.get(PACKED) is True
        until = arguments.get(UNTIL)
        if isinstance(until, int):
            reader.until = until + 1
        self.readers[consumer] = reader
        self.lifetime.begin_use()
        self.rings.add(consumer)
        self.activate()

    @property
    def consumers(self) -> Rings:
        return self.rings

    def unpark(self, consumer: Consumer) -> None:
        if self.rings.unpark(consumer):
            self.activate()

    def remove_consumer(self, consumer: Consumer) -> None:
        # Its unacknowledged messages may still be acknowledged: the channel exists.
        if consumer in self.rings.consumers:
            successor = self.rings.remove(consumer)
            self.lifetime.end_use()
            if successor is not None:
                self.activate()
                successor.activated()
        if not consumer.unacked:
            self._forget_reader(consumer)

    def _forget_reader(self, consumer: Consumer) -> None:
        reader = self.readers.pop(consumer, None)
        if reader is not None and self.named.get(reader.name) is reader:
            del self.named[reader.name]

    def _place(self, reader: Reader, start: StartingPoint) -> None:
        """Position a reader at its start. If retention has removed that offset, it starts at the oldest message."""
        if start.offset >= 0:
            reader.next = start.offset + 1
        elif start.time >= 0:
            reader.next = self.offset_at(start.time) + 1
        elif start.name == FIRST:
            reader.next = 0
        elif start.name == LAST:
            reader.next = self._newest()
        else:
            reader.next = self.visible_until

    def _newest(self) -> int:
        """Return the sequence number of the first message of the latest commit; of the last message after a restart."""
        return self.shown_from or self.visible_until - 1

    def offset_at(self, time: int) -> int:
        """Return the first offset of the first chunk with a message appended at or after `time`, else the next offset.

        `time` is in milliseconds of Unix time.
        """
        found = self.sealed.find_time(time)
        if found >= 0:
            return found
        for chunk in self.chunks:
            if chunk.last >= time:
                return chunk.first - 1
        return self.visible_until - 1

    def drain(self) -> None:
        """Deliver to every reader with credit, up to the limit of a turn."""
        if self.paused:
            return
        broker = self.broker
        rings = self.rings
        lines = rings.lines()
        self.max_work = broker.work + STEP_WORK * (1 + broker.inputs)
        for ring in lines:
            for _ in range(len(ring)):
                if not ring:
                    break
                consumer = ring[0]
                reader = self.readers.get(consumer)
                if consumer.left or (reader is not None and not self._serve(reader)):
                    if ring and ring[0] is consumer:
                        rings.step_out(ring)
                else:
                    ring.rotate(-1)
                if broker.work > self.max_work:
                    broker.jobs.deferred.add(self)
                    return

    def _serve(self, reader: Reader) -> bool:
        """Serve a reader; return False without credit, or if it cannot receive its next message."""
        try:
            return reader.serve(self)
        except Undelivered as undelivered:
            entry = undelivered.entry
            if entry.holder is not None:
                settlement.detach(entry)
                self.counters.count_returned(0)
            reader.consumer.missed(str(undelivered))
            return False

    def is_spent(self) -> bool:
        """Return whether the limit of deliveries in this turn is reached."""
        return self.broker.work > self.max_work

    def find_chunk(self, seq: int) -> StreamChunk | None:
        """Return the first chunk that ends after a sequence number."""
        sealed = self.sealed.find(seq)
        if sealed is not None:
            return sealed
        chunks = self.chunks
        index = self._chunk_index(seq)
        return chunks[index] if index < len(chunks) else None

    def _chunk_index(self, seq: int) -> int:
        """Return the index of the first chunk of the log that ends after a sequence number; their number for none."""
        chunks = self.chunks
        low = 0
        high = len(chunks)
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].end <= seq:
                low = middle + 1
            else:
                high = middle
        return low

    def load_chunk(self, chunk: StreamChunk) -> None:
        if not chunk.loading:
            chunk.loading = True
            if chunk.segment is None:
                self.log.load(chunk.rows, chunk.slots, _Load(self, chunk).done)
            else:
                self.sealed.load(chunk)

    def when_loaded(self, done: Callable[[], None]) -> None:
        """Call `done` when a chunk was read, or could not be."""
        self.awaiting.append(done)

    def _notify_awaiting(self) -> None:
        awaiting = self.awaiting
        if awaiting:
            self.awaiting = []
            for done in awaiting:
                done()

    def loaded(self, chunk: StreamChunk, loaded: list[Loaded]) -> None:
        """Accept the loaded messages of a chunk."""
        self._accept(chunk, loaded)
        self._notify_awaiting()

    def _accept(self, chunk: StreamChunk, loaded: list[Loaded]) -> None:
        chunk.loading = False
        if chunk.dropped or self.deleted:
            self.activate()
            return
        messages: list[Message | None]
        if chunk.segment is not None:
            messages = self.sealed.messages_of(chunk, loaded)
        else:
            messages = [item.message for item in loaded]
            if len(messages) < chunk.count or chunk.messages is not None:
                self.activate()  # it has grown while it was read
                self.broker.end_turn()
                return
            for index, item in enumerate(loaded):
                if item.overlay is not None:
                    chunk.overlays[chunk.first + index] = item.overlay
        chunk.messages = messages
        self.cache.add(chunk)
        self._evict(chunk)
        self.activate()
        self.broker.end_turn()

    def fail_readers(self, chunk: StreamChunk, text: str) -> None:
        """Fail the readers of a chunk that cannot be read."""
        for consumer, reader in list(self.readers.items()):
            if reader.chunk is chunk and consumer in self.rings.consumers:
                self.rings.leave(consumer)
                self.remove_consumer(consumer)
                consumer.failed(text)
        self._notify_awaiting()
        self.activate()
        self.broker.end_turn()

    def can_deliver_now(self, message: Message) -> bool:
        return not self.paused and any(consumer.has_credit_for(message.size) for consumer in self.rings.consumers)

    # Settlement: credit, and offsets of named readers

    def settle(self, entry: Entry) -> None:
        self._settled(entry, ACCEPTED)

    def _settled(self, entry: Entry, outcome: str) -> None:
        holder = entry.holder
        if holder is not None and self.named:
            reader = self.readers.get(holder)
            if reader is not None:
                self.acknowledged(reader, entry.seq - 1)
        self._returned(entry, outcome)

    def acknowledged(self, reader: Reader, offset: int) -> None:
        progress = reader.progress
        if progress is not None and progress.acknowledge(offset):
            self.tracking.keep(reader.name, progress)

    def _returned(self, entry: Entry, outcome: str) -> None:
        holder = entry.holder
        # A record batch has no overlay, and is not a message.
        if self.watch is not None and entry.overlay is not None:
            self.watch.settled(entry, outcome, protocol_of(holder))
        if holder is not None:
            settlement.detach(entry)
            if not holder.active and not holder.unacked:
                self._forget_reader(holder)
        counters = self.counters
        counters.count_returned(0)
        settlement.archive(entry)
        if outcome == ACCEPTED:
            counters.count_accepted(1)
        else:
            counters.count_removed()

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        self._returned(entry, RELEASED)

    def reject(self, entry: Entry, reason: str = "") -> None:
        self._settled(entry, REJECTED)

    # Deletion

    def delete(self, keep_pending: bool = False) -> int:
        count = self.ready_count
        self.vhost.streams.discard(self)
        if self.sealing is not None:
            self.sealing.stop()
        self.sealed.drop_all()
        hub = self.broker.segments
        if hub is not None:
            hub.changed(self)
        while self.chunks:
            self._drop(self.chunks[0])
        for run in self.pending:
            self._settle(run.first, run.source, run.source_first, run.rows, run.slots)
            if run.source:
                self._delete_record(run.first)
        self.pending.clear()
        self.readers.clear()
        self.named.clear()
        self.tracking.forget()
        if self.aging is not None:
            self.broker.timers.cancel(self.aging)
            self.aging.stream = None
            self.aging = None
        self.detach(self.rings.clear())
        self.broker.forget_queue(self)
        return count


TYPE: Final[QueueType] = QueueType(
    "stream",
    StreamQueue,
    (
        Argument("x-max-age", INTERVAL, hint="; other queue types use 'x-message-ttl'"),
        Argument("x-stream-max-segments", WHOLE, 1, unit="segments"),
    ),
    durable=True,
    refused=(
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-priority",
        "x-delivery-limit",
        RETRY_DELAYS,
        "x-single-active-consumer",
        DEDUPLICATION,
        DEDUPLICATION_WINDOW,
        "x-queue-mode",
    ),
    apply_to="streams",
    because="which removes messages only by 'x-max-length-bytes', 'x-max-age' and 'x-stream-max-segments'",
)

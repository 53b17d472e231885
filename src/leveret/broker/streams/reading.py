"""Stream readers: their positions, and delivery to them.

A position is a chunk and a sequence number in it. Messages of a chunk that is not in memory are read once for all readers
that wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.consumer import Consumer
from leveret.broker.message import ONLY_OFFSET, Entry, Message, Overlay, with_offset
from leveret.broker.outcomes import ACCEPTED
from leveret.broker.queues.record_batches import RecordBatch
from leveret.broker.streams.chunks import CHUNK_BYTES, StreamChunk
from leveret.broker.streams.filters import StreamFilter
from leveret.broker.streams.tracking import Progress

if TYPE_CHECKING:
    from leveret.broker.streams.queue import StreamQueue


# Number of skipped messages between two checks of the turn's limit, less one; a power of two.
SKIPS: Final = 63
# Messages (as a power of two) of a record batch per unit of work.
PACKED_SHIFT: Final = 2
# Bytes of the messages of a chunk up to which it is read as record batches.
MAX_AHEAD: Final = 2 * CHUNK_BYTES


class Ahead:
    """Record batches of a chunk on disk that are read for one reader.

    next     sequence number of the first message that is not delivered
    batches  the record batches from there on, the first one last; None while they are being read, and empty if the messages
             can only be loaded
    """

    __slots__ = ("batches", "chunk", "next", "stream")

    def __init__(self, stream: StreamQueue, chunk: StreamChunk, next: int) -> None:
        self.stream = stream
        self.chunk = chunk
        self.next = next
        self.batches: list[RecordBatch] | None = None

    def done(self, batches: list[RecordBatch]) -> None:
        batches.reverse()
        self.batches = batches
        self.stream.activate()
        self.stream.broker.end_turn()

    def take(self) -> RecordBatch:
        """Return the next record batch. There must be one."""
        assert self.batches
        record_batch = self.batches.pop()
        self.next += record_batch.count
        return record_batch


class Reader:
    """A consumer's position in a stream.

    next    sequence number of the next message
    chunk   the chunk with it, None until it is looked up
    filter  selects messages
    name, progress  name and tracked offset; None if they are not tracked
    packed  whether it receives record batches; `until` a sequence number, -1 for no end; the batches delivered so far cover
            everything before `covered`
    ahead   record batches that are read from the log
    """

    __slots__ = ("ahead", "chunk", "consumer", "covered", "filter", "name", "next", "packed", "progress", "until")

    def __init__(self, consumer: Consumer, filter: StreamFilter) -> None:
        self.consumer = consumer
        self.next = 0
        self.chunk: StreamChunk | None = None
        self.filter = filter
        self.name = ""
        self.progress: Progress | None = None
        self.packed = False
        self.until = -1
        self.covered = -1
        self.ahead: Ahead | None = None

    def serve(self, stream: StreamQueue) -> bool:
        """Deliver messages; return False without credit. Other readers are next when `stream.is_spent`."""
        if self.packed:
            return self._serve_record_batches(stream)
        consumer = self.consumer
        while True:
            chunk = self._find_chunk(stream)
            if chunk is None:
                return True
            if chunk.messages is None:
                if not consumer.has_credit_for(0):
                    return False
                stream.load_chunk(chunk)
                return True
            if not self._serve_from(stream, chunk, chunk.messages):
                return False
            if stream.is_spent():
                return True

    def _serve_from(self, stream: StreamQueue, chunk: StreamChunk, messages: list[Message | None]) -> bool:
        """Deliver messages of a chunk in memory; return False if the reader has no credit left."""
        consumer = self.consumer
        progress = self.progress
        picks = consumer.selective or not self.filter.any
        overlays = chunk.overlays
        watch = stream.watch
        first = chunk.first
        delivered = unacked = 0
        skipped = 0
        seq = self.next
        try:
            while seq - first < len(messages):
                message = messages[seq - first]
                if message is None:
                    seq += 1  # erased
                    continue
                overlay = overlays.get(seq) if overlays else None
                if picks and self._skips(stream, message, overlay):
                    seq += 1
                    skipped += 1
                    if skipped & SKIPS == 0:
                        stream.broker.work += SKIPS
                        if stream.is_spent():
                            return True
                    continue
                if not consumer.has_credit_for(message.size):
                    return False
                if watch is not None and stream.is_spent():
                    return True
                entry = Entry(stream, message, seq)
                entry.overlay = ONLY_OFFSET if overlay is None else with_offset(overlay)
                settlement.acquire(entry, None)
                seq += 1
                delivered += 1
                if progress is not None:
                    progress.delivered.append(seq - 2)
                if watch is not None:
                    watch.delivered(entry, consumer)
                if consumer.no_ack:
                    consumer.deliver(entry)
                    settlement.archive(entry)
                    if watch is not None:
                        watch.settled(entry, ACCEPTED, consumer.protocol())
                    stream.acknowledged(self, seq - 2)
                else:
                    settlement.assign(entry, consumer)
                    unacked += 1
                    consumer.deliver(entry)
        finally:
            self.next = seq
            stream.counters.count_deliveries(delivered, unacked, 0, delivered - unacked, 0)
            stream.broker.work += delivered
        return True

    def _serve_record_batches(self, stream: StreamQueue) -> bool:
        """Deliver record batches, each with messages of one chunk; return as `serve` does."""
        consumer = self.consumer
        while True:
            if stream.is_spent():
                return True
            before = self.next
            if 0 <= self.until <= before:
                if self.covered < 0 or self.covered == before:
                    return True
                messages: list[Message | None] | None = []
                chunk = None
            else:
                chunk = self._find_chunk(stream)
                if chunk is None:
                    return True
                messages = chunk.messages
            first = self.next
            if self.covered < 0 or first != before:
                self.covered = first  # messages removed by retention are not covered
            if not consumer.has_credit_for(0):
                return False
            record_batch: RecordBatch | None
            if chunk is None:
                record_batch = RecordBatch()
            elif messages is None:
                record_batch = self._take_ahead(stream, chunk)
                if record_batch is None:
                    return True
            else:
                record_batch = RecordBatch()
            if chunk is not None:
                if messages is None:
                    self.next = first + record_batch.count
                else:
                    self._collect(stream, chunk, messages, record_batch)
                stream.broker.work += 1 + (self.next - first >> PACKED_SHIFT)
                if not record_batch.count and not 0 <= self.until <= self.next:
                    continue
            entry = Entry(stream, record_batch.message(stream.name, self.covered - 1, self.next - 1), self.next)
            settlement.acquire_unacked(entry, consumer)
            self.covered = self.next
            stream.counters.count_deliveries(record_batch.count, 1, 0, 0, 0)
            consumer.deliver(entry)

    def _collect(
        self, stream: StreamQueue, chunk: StreamChunk, messages: list[Message | None], record_batch: RecordBatch
    ) -> None:
        """Add messages of a chunk in memory to a record batch, and advance the reader."""
        self.ahead = None
        watch = stream.watch
        end = chunk.end if self.until < 0 else min(chunk.end, self.until)
        seq = self.next
        while seq < end:
            index = seq - chunk.first
            message = messages[index]
            overlay = chunk.overlays.get(seq)
            if message is not None and not self._skips(stream, message, overlay):
                if not record_batch.has_room(message.size):
                    break
                record_batch.add(message, seq - 1, chunk.time_of(index), overlay)
                if watch is not None:
                    watch.delivered(Entry(stream, message, seq), self.consumer, True)
                    if stream.is_spent():
                        seq += 1
                        break
            seq += 1
        self.next = seq

    def _take_ahead(self, stream: StreamQueue, chunk: StreamChunk) -> RecordBatch | None:
        """Return the next record batch of a chunk on disk. If there is none yet, read some, or load the chunk."""
        ahead = self.ahead
        first = self.next
        if ahead is not None and ahead.chunk is chunk and ahead.next == first:
            if ahead.batches is None:
                return None
            if ahead.batches:
                return ahead.take()
        elif self._read_ahead(stream, chunk):
            return None
        stream.load_chunk(chunk)
        return None

    def _read_ahead(self, stream: StreamQueue, chunk: StreamChunk) -> bool:
        """Read record batches of a chunk. Returns False if its messages have to be loaded."""
        self.ahead = None
        if (
            chunk.segment is not None
            or chunk.loading
            or chunk.bytes > MAX_AHEAD
            or not self.filter.any
            or self.consumer.selective
            or stream.watch is not None
        ):
            return False
        first = self.next
        begin = first - chunk.first
        end = (chunk.end if self.until < 0 else min(chunk.end, self.until)) - chunk.first
        ahead = Ahead(stream, chunk, first)
        if not stream.log.load_record_batches(chunk.rows[begin:end], chunk.slots[begin:end], first, chunk.time, ahead.done):
            return False
        self.ahead = ahead
        return True

    def _find_chunk(self, stream: StreamQueue) -> StreamChunk | None:
        """Return the chunk with the reader's next message; None if that does not exist yet."""
        chunk = self.chunk
        while chunk is not None and not chunk.dropped and self.next >= chunk.end:
            following = chunk.following
            if following is None and chunk.segment is None:
                return None
            chunk = following
            if chunk is not None:
                self.next = max(self.next, chunk.first)
        if chunk is None or chunk.dropped or (chunk.segment is not None and chunk.messages is None):
            chunk = stream.find_chunk(self.next)
            self.chunk = chunk
            if chunk is None:
                return None
            self.next = max(self.next, chunk.first)
        self.chunk = chunk
        return chunk

    def _skips(self, stream: StreamQueue, message: Message, overlay: Overlay | None) -> bool:
        """Return whether the reader's filter excludes a message."""
        filter = self.filter
        if not filter.any and not filter.wants(stream.broker, message, overlay):
            return True
        consumer = self.consumer
        return consumer.selective and not consumer.wants(message, None)

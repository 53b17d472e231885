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
from leveret.broker.streams.chunks import StreamChunk
from leveret.broker.streams.filters import StreamFilter
from leveret.broker.streams.tracking import Progress

if TYPE_CHECKING:
    from leveret.broker.streams.queue import StreamQueue


class Reader:
    """A consumer's position in a stream.

    next    sequence number of the next message
    chunk   the chunk with it, None until it is looked up
    filter  selects messages
    name, progress  name and tracked offset; None if they are not tracked
    packed  whether it receives record batches; `until` a sequence number, -1 for no end; the batches delivered so far cover
            everything before `covered`
    """

    __slots__ = ("chunk", "consumer", "covered", "filter", "name", "next", "packed", "progress", "until")

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


# Number of skipped messages between two checks of the turn's limit, less one; a power of two.
SKIPS: Final = 63
# Messages (as a power of two) of a record batch per unit of work.
PACKED_SHIFT: Final = 2


def serve(stream: StreamQueue, reader: Reader) -> bool:
    """Deliver to one reader; return False if it has no credit left. Other readers are next when `stream.is_spent`."""
    if reader.packed:
        return _serve_record_batches(stream, reader)
    consumer = reader.consumer
    while True:
        chunk = _chunk_of(stream, reader)
        if chunk is None:
            return True
        if chunk.messages is None:
            if not consumer.can_take(0):
                return False
            stream.load_chunk(chunk)
            return True
        if not _serve_from(stream, reader, chunk, chunk.messages):
            return False
        if stream.is_spent():
            return True


def _serve_from(stream: StreamQueue, reader: Reader, chunk: StreamChunk, messages: list[Message | None]) -> bool:
    """Deliver messages of a chunk in memory; return False if the reader has no credit left."""
    consumer = reader.consumer
    progress = reader.progress
    picks = consumer.selective or not reader.filter.any
    overlays = chunk.overlays
    watch = stream.watch
    first = chunk.first
    delivered = 0
    skipped = 0
    seq = reader.next
    try:
        while seq - first < len(messages):
            message = messages[seq - first]
            if message is None:
                seq += 1  # erased
                continue
            overlay = overlays.get(seq) if overlays else None
            if picks and _skips(stream, reader, message, overlay):
                seq += 1
                skipped += 1
                if skipped & SKIPS == 0:
                    stream.broker.work += SKIPS
                    if stream.is_spent():
                        return True
                continue
            if not consumer.can_take(message.size):
                return False
            entry = Entry(stream, message, seq)
            entry.overlay = ONLY_OFFSET if overlay is None else with_offset(overlay)
            settlement.acquire(entry, None)
            seq += 1
            delivered += 1
            if progress is not None:
                progress.handed.append(seq - 2)
            if watch is not None:
                watch.delivered(entry, consumer.protocol())
            if consumer.no_ack:
                consumer.deliver(entry)
                settlement.archive(entry)
                if watch is not None:
                    watch.settled(entry, ACCEPTED, consumer.protocol())
                stream.acknowledged(reader, seq - 2)
            else:
                entry.holder = consumer
                consumer.unacked += 1
                stream.unacked += 1
                consumer.deliver(entry)
    finally:
        reader.next = seq
        stream.delivered += delivered
        stream.broker.work += delivered
    return True


def _serve_record_batches(stream: StreamQueue, reader: Reader) -> bool:
    """Deliver record batches, each with messages of one chunk; return as `serve` does."""
    consumer = reader.consumer
    watch = stream.watch
    while True:
        if stream.is_spent():
            return True
        before = reader.next
        if 0 <= reader.until <= before:
            if reader.covered < 0 or reader.covered == before:
                return True
            messages: list[Message | None] | None = []
            chunk = None
        else:
            chunk = _chunk_of(stream, reader)
            if chunk is None:
                return True
            messages = chunk.messages
        if not consumer.can_take(0):
            return False
        if messages is None:
            assert chunk is not None
            stream.load_chunk(chunk)
            return True
        first = reader.next
        if reader.covered < 0 or first != before:
            reader.covered = first  # messages removed by retention are not covered
        record_batch = RecordBatch()
        if chunk is not None:
            end = chunk.end if reader.until < 0 else min(chunk.end, reader.until)
            seq = first
            while seq < end:
                index = seq - chunk.first
                message = messages[index]
                overlay = chunk.overlays.get(seq)
                if message is not None and not _skips(stream, reader, message, overlay):
                    if not record_batch.has_room(message.size):
                        break
                    record_batch.add(message, seq - 1, chunk.time_of(index), overlay)
                    if watch is not None:
                        watch.delivered(Entry(stream, message, seq), consumer.protocol(), True)
                seq += 1
            stream.broker.work += 1 + (seq - first >> PACKED_SHIFT)
            reader.next = seq
            if not record_batch.count and not 0 <= reader.until <= seq:
                continue
        entry = Entry(stream, record_batch.message(stream.name, reader.covered - 1, reader.next - 1), reader.next)
        settlement.acquire(entry, consumer)
        reader.covered = reader.next
        consumer.unacked += 1
        stream.unacked += 1
        stream.delivered += record_batch.count
        consumer.deliver(entry)


def _chunk_of(stream: StreamQueue, reader: Reader) -> StreamChunk | None:
    """Return the chunk with the reader's next message; None if that does not exist yet."""
    chunk = reader.chunk
    while chunk is not None and not chunk.dropped and reader.next >= chunk.end:
        following = chunk.following
        if following is None and chunk.segment is None:
            return None
        chunk = following
        if chunk is not None:
            reader.next = max(reader.next, chunk.first)
    if chunk is None or chunk.dropped or (chunk.segment is not None and chunk.messages is None):
        chunk = stream.find_chunk(reader.next)
        reader.chunk = chunk
        if chunk is None:
            return None
        reader.next = max(reader.next, chunk.first)
    reader.chunk = chunk
    return chunk


def _skips(stream: StreamQueue, reader: Reader, message: Message, overlay: Overlay | None) -> bool:
    """Return whether the reader's filter excludes a message."""
    filter = reader.filter
    if not filter.any and not filter.wants(stream.broker, message, overlay):
        return True
    consumer = reader.consumer
    return consumer.selective and not consumer.wants(message, None)

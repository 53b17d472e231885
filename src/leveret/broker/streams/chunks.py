"""The contents of a stream: chunks of consecutive messages, oldest first.

A chunk is a list of positions in the log, or a part of a sealed segment. It is the unit of reading, of retention and of the
time index. The messages of the newest chunks, and of those read recently, are in memory too.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from leveret.broker.log import append_positions
from leveret.broker.message import Message, Overlay

if TYPE_CHECKING:
    from leveret.broker.segments import Segment

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
# Maximum age of a chunk in milliseconds: the resolution of the time index, and of the times in sealed segments.
CHUNK_TIME: Final = 60_000
SEALED_CHUNK_TIME: Final = 1_000


class StreamChunk:
    """A chunk: consecutive messages.

    first, count  sequence number of the first message, number of messages; their sequence numbers have no gaps
    time, last  append times of the first and the last message, milliseconds of Unix time
    rows, slots, sizes   positions in the log, and body sizes in bytes; empty for a sealed chunk
    source, source_first  for messages that a sink transaction moved here: its queue id, under which the log has them, and
               the sequence number of the first one there; otherwise 0
    before     bytes of the bodies in earlier chunks of the log, also dropped ones; only differences of it have a meaning
    segment    the segment of a sealed chunk; None for a chunk of the log, whose messages all count as appended at `time`
    times      append times of the messages of a sealed chunk that are in memory
    messages   the messages in memory, None if they are not; an item is None for an erased message
    overlays   overlays of dead letters, by sequence number; with `messages`
    following  the next chunk of the log, None for the newest one, and for a sealed one
    dropped    whether it was removed by retention or sealed: its messages are in another chunk, or in none
    closed     whether it accepts no more appends; sealing: whether it is about to become part of a segment
    """

    __slots__ = (
        "before",
        "bytes",
        "closed",
        "count",
        "dropped",
        "first",
        "following",
        "last",
        "loading",
        "messages",
        "overlays",
        "rows",
        "sealing",
        "segment",
        "sizes",
        "slots",
        "source",
        "source_first",
        "time",
        "times",
    )

    def __init__(self, first: int, time: int, previous: StreamChunk | None = None) -> None:
        self.first = first
        self.before: int = 0 if previous is None else previous.before + previous.bytes
        self.time = time
        self.last = time
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.source = 0
        self.source_first = 0
        self.bytes: int = 0
        self.count = 0
        self.segment: Segment | None = None
        self.times: array[int] | None = None
        self.messages: list[Message | None] | None = None
        self.overlays: dict[int, Overlay] = {}
        self.following: StreamChunk | None = None
        self.loading = False
        self.dropped = False
        self.closed = False
        self.sealing = False

    @property
    def end(self) -> int:
        """Return the sequence number after the last message."""
        return self.first + self.count

    def time_of(self, index: int) -> int:
        """Return the append time of the message at an index; that of the chunk if its own is unknown."""
        times = self.times
        return times[index] if times is not None else self.time

    def bytes_from(self, seq: int) -> int:
        """Return the bytes of the bodies from a sequence number on, in a chunk of the log."""
        return self.bytes if seq <= self.first else sum(self.sizes[seq - self.first :])

    def estimated_time(self, seq: int) -> int:
        """Return the append time of a message in a chunk of the log, as if they had been appended at a steady rate."""
        return self.time + (self.last - self.time) * (seq - self.first) // max(self.count - 1, 1)

    def fitting(self, run: PendingRun) -> int:
        """Return how many messages of a run are added to the chunk. The last one may exceed the limit of bytes."""
        room = min(CHUNK_ENTRIES - self.count, len(run.sizes))
        left = CHUNK_BYTES - self.bytes
        if room == len(run.sizes) and run.bytes <= left:
            return room
        count = 0
        while count < room and left > 0:
            left -= run.sizes[count]
            count += 1
        return count

    def is_full(self, now: int, max_age: int) -> bool:
        """Return whether the next message needs a new chunk; `max_age` is CHUNK_TIME or SEALED_CHUNK_TIME."""
        return self.count >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES or now - self.time >= max_age or self.closed


class PendingRun:
    """Messages with consecutive sequence numbers that become visible with one log commit.

    first    sequence number of the first message
    batch    the log commit
    rows, slots, sizes, bytes  as in a chunk
    messages, overlays  as in a chunk
    source, source_first  as in a chunk; such a run becomes a chunk of its own
    """

    __slots__ = ("batch", "bytes", "first", "messages", "overlays", "rows", "sizes", "slots", "source", "source_first")

    def __init__(self, first: int, batch: int) -> None:
        self.first = first
        self.batch = batch
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0
        self.messages: list[Message] | None = []
        self.overlays: dict[int, Overlay] = {}
        self.source = 0
        self.source_first = 0

    @property
    def end(self) -> int:
        """Return the sequence number after the last message."""
        return self.first + len(self.sizes)

    def add(self, message: Message, row_id: int, slot: int) -> None:
        """Add a message, which is at this position in the log."""
        self.rows.append(row_id)
        self.slots.append(slot)
        self.sizes.append(message.size)
        self.bytes += message.size
        if self.messages is not None:
            self.messages.append(message)

    def add_run(self, messages: list[Message]) -> None:
        """Add messages that were stored one after the other."""
        append_positions(self.rows, self.slots, messages)
        sizes: list[int] = []
        n_bytes = 0
        for message in messages:
            sizes.append(message.size)
            n_bytes += message.size
        self.sizes.fromlist(sizes)
        self.bytes += n_bytes
        if self.messages is not None:
            self.messages.extend(messages)

    def retract(self) -> None:
        """Remove the last message."""
        self.rows.pop()
        self.slots.pop()
        self.bytes -= self.sizes.pop()
        self.overlays.pop(self.end, None)
        if self.messages is not None:
            self.messages.pop()

    def drop(self, count: int, size: int) -> None:
        """Remove the first messages, with bodies of `size` bytes in total."""
        del self.rows[:count]
        del self.slots[:count]
        del self.sizes[:count]
        self.first += count
        self.bytes -= size
        if self.messages is not None:
            del self.messages[:count]

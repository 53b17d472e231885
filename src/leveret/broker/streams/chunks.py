"""The contents of a stream: chunks of consecutive messages, oldest first.

A chunk is a list of positions in the log, or a part of a sealed segment. It is the unit of reading, of retention and of the
time index. The messages of the newest chunks, and of those read recently, are in memory too.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

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
    segment    the segment of a sealed chunk; None for a chunk of the log, whose messages all count as appended at `time`
    times      append times of the messages of a sealed chunk that are in memory
    messages   the messages in memory, None if they are not; an item is None for an erased message
    overlays   overlays of dead letters, by sequence number; with `messages`
    following  the next chunk of the log, None for the newest one, and for a sealed one
    dropped    whether it was removed by retention or sealed: its messages are in another chunk, or in none
    closed     whether it accepts no more appends; sealing: whether it is about to become part of a segment
    """

    __slots__ = (
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
        "time",
        "times",
    )

    def __init__(self, first: int, time: int) -> None:
        self.first = first
        self.time = time
        self.last = time
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0
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

    def room(self) -> int:
        """Return how many more messages fit."""
        return CHUNK_ENTRIES - self.count

    def bytes_left(self) -> int:
        """Return how many more bytes fit."""
        return CHUNK_BYTES - self.bytes

    def is_full(self, now: int, max_age: int) -> bool:
        """Return whether the next message needs a new chunk; `max_age` is CHUNK_TIME or SEALED_CHUNK_TIME."""
        return self.count >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES or now - self.time >= max_age or self.closed

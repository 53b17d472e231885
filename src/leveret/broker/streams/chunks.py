"""What a stream holds: chunks of consecutive messages, oldest first, each a list of positions in the log, or a piece of a
sealed segment.

A chunk is what is read back at once, what retention drops, and what the time index knows the time of. The messages of
the newest chunks, and of those that readers have asked for lately, are in memory too.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from leveret.broker.message import Message, Overlay

if TYPE_CHECKING:
    from leveret.broker.segments import Segment

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
# A chunk takes appends of so many milliseconds at most: the grain of the time index, and of the times in sealed segments.
CHUNK_TIME: Final = 60_000
SEALED_CHUNK_TIME: Final = 1_000


class StreamChunk:
    """Consecutive messages.

    first, count  sequence number of the first one, how many there are; the others follow without a gap
    time, last  when the first and the last one were appended, milliseconds of Unix time
    rows, slots, sizes   where each stands in the log, and the bytes of its body; nothing of a sealed chunk
    segment    where it was sealed, None for a chunk of the log, whose messages all count as appended at `time`
    times      of a sealed chunk whose messages are in memory, when each was appended
    messages   the same messages in memory, None where they are not; within it None for one that was erased
    overlays   what the broker has added to some of them (dead letters), by sequence number; with `messages`
    following  the chunk of the log behind this one, None for the newest, and for a sealed one
    dropped    retention has taken it away, or it was sealed: another one, or none, has its messages
    closed     takes no more appends; sealing: it is about to become part of a segment
    """

    __slots__ = ("bytes", "closed", "count", "dropped", "first", "following", "last", "loading", "messages", "overlays",
                 "rows", "sealing", "segment", "sizes", "slots", "time", "times")

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
        """The sequence number behind the last one."""
        return self.first + self.count

    def time_of(self, index: int) -> int:
        """When the message at this place was appended, as closely as it is known."""
        times = self.times
        return times[index] if times is not None else self.time

    def room(self) -> int:
        """How many messages it takes more."""
        return CHUNK_ENTRIES - self.count

    def bytes_left(self) -> int:
        """It is full once these are used up."""
        return CHUNK_BYTES - self.bytes

    def is_full(self, now: int, longest: int) -> bool:
        """Whether the next message needs another chunk; `longest` is CHUNK_TIME or SEALED_CHUNK_TIME."""
        return (self.count >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES or now - self.time >= longest or self.closed)

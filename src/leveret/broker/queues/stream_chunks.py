"""What a stream holds: chunks of consecutive messages, oldest first, each a list of positions in the log.

A chunk is what is read back at once, what retention drops, and what the time index knows the time of. The messages of
the newest chunks, and of those that readers have asked for lately, are in memory too.
"""

from __future__ import annotations

from array import array
from typing import Final

from leveret.broker.message import Message, Overlay

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
# A chunk takes appends of so many milliseconds at most: the grain of the time index.
CHUNK_TIME: Final = 60_000


class StreamChunk:
    """Consecutive messages.

    first      sequence number of the first one; the others follow without a gap
    time, last  when the first and the last one were appended, milliseconds of Unix time
    rows, slots, sizes   where each stands in the log, and the octets of its body
    messages   the same messages in memory, None where they are not
    overlays   what the broker has added to some of them (dead letters), by sequence number; with `messages`
    following  the chunk behind this one, None for the newest
    dropped    retention has taken it away
    """

    __slots__ = ("bytes", "dropped", "first", "following", "last", "loading", "messages", "overlays",
                 "rows", "sizes", "slots", "time")

    def __init__(self, first: int, time: int) -> None:
        self.first = first
        self.time = time
        self.last = time
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0
        self.messages: list[Message] | None = None
        self.overlays: dict[int, Overlay] = {}
        self.following: StreamChunk | None = None
        self.loading = False
        self.dropped = False

    @property
    def end(self) -> int:
        """The sequence number behind the last one."""
        return self.first + len(self.rows)

    def time_of(self, index: int) -> int:
        """When the message at this place was appended, as closely as it is known."""
        return self.time

    def is_full(self, now: int) -> bool:
        return len(self.rows) >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES or now - self.time >= CHUNK_TIME

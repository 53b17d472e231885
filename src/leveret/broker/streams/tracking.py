"""Offsets of named consumers and sequence numbers of named publishers of a stream.

Both are stored in the metadata of the log. The offset of a consumer follows the last message that it acknowledged without
a gap. The sequence number of a publisher is written in the same commit as the message, so the two agree.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.log import Log

CONSUMER: Final = "x-stream-consumer"
PUBLISHER: Final = "x-stream-publisher"
SEQUENCE: Final = "x-stream-sequence"
# Byte patterns searched in encoded headers before they are decoded.
PUBLISHER_BYTES: Final = PUBLISHER.encode()
# Maximum number of publishers of a stream; above it, the least recently active one is forgotten.
MAX_PUBLISHERS: Final = 10_000

# Maximum number of holders whose losses are recorded, if they are not queried.
MAX_LOSING_PUBLISHERS: Final = 1_000


class Progress:
    """The tracked position of a named consumer: `next` is the offset at which it would start now.

    start         the offset at which it started, for consumers that store it nowhere else; -1 for none
    delivered, done  offsets delivered since, in order, and those of them that are acknowledged
    """

    __slots__ = ("delivered", "done", "next", "start")

    def __init__(self, next: int, start: int = -1) -> None:
        self.next = next
        self.start = start
        self.delivered: deque[int] = deque()
        self.done: set[int] = set()

    def restart(self) -> None:
        """Restart for a new reader: unacknowledged messages are delivered again."""
        self.delivered.clear()
        self.done.clear()

    def acknowledge(self, offset: int) -> bool:
        """Record an acknowledgement; return whether it advances `next`."""
        delivered = self.delivered
        self.done.add(offset)
        moved = False
        while delivered and delivered[0] in self.done:
            first = delivered.popleft()
            self.done.discard(first)
            self.next = first + 1
            moved = True
        return moved


class Tracking:
    """The tracking of one stream: `progress` by consumer name, `sequences` by publisher name, least recently used first.

    lost  by holder of a read lease: ranges of offsets, end exclusive, that retention removed before they were read under
    the
          lease; not in the log
    """

    def __init__(self, log: Log, stream_id: int) -> None:
        self._log = log
        self._id = str(stream_id)
        self.progress: dict[str, Progress] = {}
        self.sequences: dict[str, int] = {}
        self.lost: dict[str, list[tuple[int, int]]] = {}

    def note_lost(self, holder: str, first: int, stop: int) -> None:
        """Record a range that a reader of a holder did not find. Several readers may report the same range."""
        merged: list[tuple[int, int]] = []
        for one in sorted([*self.lost.pop(holder, []), (first, stop)]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one[1]))
            else:
                merged.append(one)
        self.lost[holder] = merged
        if len(self.lost) > MAX_LOSING_PUBLISHERS:
            del self.lost[next(iter(self.lost))]

    def count_lost(self, holder: str) -> int:
        """Return the number of messages that the readers of a holder did not find."""
        return sum([stop - first for first, stop in self.lost.get(holder, [])])

    def forget_lost(self, holder: str) -> None:
        self.lost.pop(holder, None)

    def start(self, name: str) -> Progress:
        """Return the progress of a consumer that starts now; its `next` is -1 if the consumer is unknown."""
        known = self.progress.get(name)
        if known is None:
            known = self.progress[name] = Progress(-1)
        known.restart()
        return known

    def keep(self, name: str, progress: Progress) -> None:
        kept = {"next": progress.next}
        if progress.start >= 0:
            kept["start"] = progress.start
        self._log.put(metadata.STREAM_OFFSET, metadata.make_key(self._id, name), metadata.pack(kept))

    def register(self, name: str, offset: int) -> tuple[Progress, bool]:
        """Start a consumer at an offset unless it is known; return whether it was unknown."""
        progress = self.progress.get(name)
        if progress is not None and progress.start >= 0:
            return progress, False
        if progress is None:
            progress = self.progress[name] = Progress(offset)
        progress.start = offset
        if progress.next < 0:
            progress.next = offset
        self.keep(name, progress)
        return progress, True

    def advance(self, name: str, offset: int) -> Progress:
        """Advance a consumer to an offset; it never moves backwards."""
        progress = self.progress.get(name)
        if progress is None:
            progress = self.progress[name] = Progress(-1)
        if offset > progress.next:
            progress.next = offset
            self.keep(name, progress)
        return progress

    def set_offset(self, name: str, offset: int | None) -> None:
        """Set the offset at which a consumer starts next time; None forgets the consumer."""
        if offset is None:
            self.progress.pop(name, None)
            self._log.put(metadata.STREAM_OFFSET, metadata.make_key(self._id, name), None)
            return
        progress = self.start(name)
        progress.next = offset
        if progress.start >= 0:
            progress.start = offset
        self.keep(name, progress)

    def is_duplicate(self, headers: FieldTable) -> bool:
        """Return whether a message was appended before; record its sequence number otherwise."""
        name = headers.get(PUBLISHER)
        sequence = headers.get(SEQUENCE)
        if isinstance(name, bytes):
            name = name.decode("utf-8", "replace")
        if not isinstance(name, str) or not isinstance(sequence, int) or isinstance(sequence, bool):
            return False
        sequences = self.sequences
        last = sequences.pop(name, -1)
        if sequence <= last:
            sequences[name] = last
            return True
        sequences[name] = sequence
        self._log.put(metadata.STREAM_PUBLISHER, metadata.make_key(self._id, name), metadata.pack({"sequence": sequence}))
        if len(sequences) > MAX_PUBLISHERS:
            oldest = next(iter(sequences))
            del sequences[oldest]
            self._log.put(metadata.STREAM_PUBLISHER, metadata.make_key(self._id, oldest), None)
        return False

    def forget(self) -> None:
        """Remove the metadata of a deleted stream."""
        for name in self.progress:
            self._log.put(metadata.STREAM_OFFSET, metadata.make_key(self._id, name), None)
        for name in self.sequences:
            self._log.put(metadata.STREAM_PUBLISHER, metadata.make_key(self._id, name), None)


def name_of(arguments: FieldTable) -> str | None:
    """Return the name of a consumer, None if it has none. Raises PreconditionFailed for an invalid name."""
    name = arguments.get(CONSUMER)
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "surrogatepass")) <= 255:
        raise PreconditionFailed(
            f"invalid arg '{CONSUMER}': received '{str(name)[:60]}', expected a string of 1 to 255 bytes"
        )
    return name

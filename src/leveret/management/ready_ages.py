"""Ages of ready messages, and timestamps of the first ones, from samples of sequence numbers: a message costs nothing.

A pass of a feed notes the queues whose counters have changed: the next sequence number with the time. All messages with
lower numbers are at least as old. A queue without changes has the same messages as in the last pass, and costs nothing.
Times are in milliseconds, ages in seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.management.unacked_ages import HOUR, MAX_PASS_AGE, MINUTE, SampledNumbers, Sampling

if TYPE_CHECKING:
    from leveret.broker.queues.inspection import Inspection
    from leveret.broker.queues.queue import Queue
    from leveret.management.descriptions import MessageCodec

# The errors of ages are up to a quarter of them, and a second. A queue with messages has at most 1.5 KB of samples.
READY: Final = Sampling(
    0,
    96,
    ((10_000, 500), (MINUTE, 5_000), (10 * MINUTE, MINUTE), (HOUR, 10 * MINUTE), (12 * HOUR, HOUR), (48 * HOUR, 6 * HOUR)),
)


# Of the ready messages of a queue: when the oldest one arrived at the latest, in milliseconds of Unix time, 0 if none is
# ready; and the property `timestamp` of the next one to be delivered, in seconds, None if it is absent or unknown.
Head: TypeAlias = tuple[int, int | None]
EMPTY: Final[Head] = (0, None)


class _Known:
    """A queue with messages: its samples, and the sequence number and timestamp of the next one to be delivered."""

    __slots__ = ("samples", "seq", "timestamp")

    def __init__(self) -> None:
        self.samples = SampledNumbers(READY)
        self.seq = 0
        self.timestamp: int | None = None


class ReadyAges:
    """When the oldest ready messages of all queues arrived, at the latest. Ages are minimum values."""

    def __init__(self, codec: MessageCodec) -> None:
        self._codec = codec
        self._queues: dict[int, _Known] = {}
        self._noted_at = 0

    def note(self, queue: Queue) -> Head:
        """Add a sample of a queue that has changed since the last pass, or is new to a reader."""
        inspection = queue.inspect()
        oldest = inspection.oldest()
        # Unacked messages may be requeued, and are as old then as before.
        if not oldest and (queue.replayable or not queue.unacked):
            self.forget(queue.id)
            return EMPTY
        known = self._queues.get(queue.id)
        if known is None:
            known = self._queues[queue.id] = _Known()
        timers = queue.broker.timers
        now = timers.now()
        samples = known.samples
        samples.add(queue.next_seq, now)
        if not oldest:
            return EMPTY
        return (samples.time_of(oldest) or now) + timers.step, self._timestamp(queue.id, inspection, oldest)

    def _timestamp(self, queue_id: int, inspection: Inspection, oldest: int) -> int | None:
        """Return the timestamp of the next message to be delivered, which is read once if the queue is known."""
        known = self._queues.get(queue_id)
        entry = inspection.head()
        if entry is None:  # on disk
            return known.timestamp if known is not None and known.seq == oldest else None
        if known is None:
            return self._codec.timestamp(entry.message)
        if known.seq != entry.seq:
            known.seq = entry.seq
            known.timestamp = self._codec.timestamp(entry.message)
        return known.timestamp

    def end_pass(self, now: int, queues: Collection[int] | None) -> None:
        """Note the end of a pass over all queues, given their ids if others are to be forgotten."""
        self._noted_at = now
        if queues is not None:
            for queue_id in self._queues.keys() - queues:
                del self._queues[queue_id]

    def forget(self, queue_id: int) -> None:
        """Forget a queue that has no messages, or was deleted."""
        self._queues.pop(queue_id, None)

    def age_of(self, queue: Queue) -> int | None:
        """Return the age of the oldest ready message of a queue; None if none is ready, or without a recent pass."""
        now = queue.broker.timers.now()
        oldest = queue.inspect().oldest()
        if not oldest or now - self._noted_at > MAX_PASS_AGE:
            return None
        known = self._queues.get(queue.id)
        return 0 if known is None else (now - (known.samples.time_of(oldest) or now)) // 1000

    def timestamp_of(self, queue: Queue) -> int | None:
        """Return the timestamp of the next message that a queue delivers; None if it is absent or unknown."""
        inspection = queue.inspect()
        oldest = inspection.oldest()
        return self._timestamp(queue.id, inspection, oldest) if oldest else None

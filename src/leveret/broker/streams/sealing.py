"""Sealing of a stream: turn its oldest chunks into a segment, and merge small segments.

The order makes a crash harmless: first the file is complete on disk, then the manifest refers to it, and only after that
commit the log removes the messages. After a crash before the commit, the next start removes the file, which has no
manifest entry. After a crash later, messages may be in both places, and the next start removes them from the log.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from array import array
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from leveret.broker.log import CommitWaiter
from leveret.broker.segments import AGAIN, FIRST_RETRY, MAX_RETRY_DELAY, SealTask, Segment, Written
from leveret.broker.streams.chunks import CHUNK_BYTES, CHUNK_ENTRIES, CHUNK_TIME, StreamChunk
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.segments import Segments
    from leveret.broker.streams.queue import StreamQueue

logger = logging.getLogger("leveret.broker")

# Maximum number of messages in a segment, however small they are.
MAX_MESSAGES: Final = 1 << 20
# Maximum size of a segment as a fraction of the retention limit, so that retention removes little at once; not below
# MIN_SEGMENT_BYTES.
SHARE_OF_RETENTION: Final = 8
MIN_SEGMENT_BYTES: Final = 256 << 10
# Maximum number of messages that the log releases at once.
TRIMMED: Final = 4 * CHUNK_ENTRIES
# Number of small neighbours that are merged even if they are small together.
MERGED: Final = 8
# Maximum number of immediate restarts after positions moved.
MAX_RESTARTS: Final = 5


@mypyc_attr(allow_interpreted_subclasses=True)
class SealedWaiter:
    """Callback of a request to seal a whole stream."""

    @abstractmethod
    def sealed(self, text: str) -> None:
        """Handle success, or the failure in `text`."""


class _Registered(CommitWaiter):
    def __init__(self, job: _Seal, segment: Segment) -> None:
        self.job = job
        self.segment = segment

    def committed(self, batch: int) -> None:
        self.job.registered(self.segment)


class _Awaiting(CommitWaiter):
    """Waits for a log commit before the next part can be read."""

    def __init__(self, job: _Seal) -> None:
        self.job = job

    def committed(self, batch: int) -> None:
        self.job.next_part()


class _Seal(SealTask):
    """Writes chunks to a segment."""

    def __init__(self, sealing: Sealing, hub: Segments, chunks: list[StreamChunk]) -> None:
        super().__init__(sealing.home, sealing.stream.name)
        self.sealing = sealing
        self.hub = hub
        self.chunks = chunks
        self.segment: Segment | None = None
        self.at = 0
        self.dropped = False
        for chunk in chunks:
            chunk.sealing = True
            chunk.closed = True

    def next_part(self) -> None:
        if self.dropped:
            return
        if self.at == len(self.chunks):
            self.hub.store.finish(self)
            return
        chunk = self.chunks[self.at]
        located = self.sealing.stream.log.locate(chunk.rows, chunk.slots)
        if located is None:
            self.sealing.stream.log.wait(_Awaiting(self))
            return
        self.at += 1
        self.hub.store.part(self, located, chunk.first - 1, array("Q", (chunk.count, chunk.time)))

    def written(self, result: Written) -> None:
        chunks = self.chunks
        starts, times = _bounds(chunks)
        newest = chunks[len(chunks) - 1]
        segment = result.segment(chunks[0].first - 1, newest.end - 2, chunks[0].time, newest.last, starts, times)
        self.segment = segment
        stream = self.sealing.stream
        stream.sealed.register(segment)
        stream.log.wait(_Registered(self, segment))

    def registered(self, segment: Segment) -> None:
        self.sealing.registered(self, segment)

    def failed(self, kind: str, text: str) -> None:
        self.sealing.failed(self, kind, text)

    def abort(self) -> None:
        """Give up sealing: the chunks stay in the log."""
        self.dropped = True
        for chunk in self.chunks:
            chunk.sealing = False


class _Merge:
    """Merges neighbours into one file."""

    def __init__(self, sealing: Sealing, hub: Segments, old: list[Segment]) -> None:
        self.sealing = sealing
        self.hub = hub
        self.old = old

    def done(self, result: Written | None, kind: str, text: str) -> None:
        self.sealing.merging = False
        old = self.old
        stream = self.sealing.stream
        if result is None:
            if not stream.deleted:
                self.sealing.retry_later(f"its segments from offset {old[0].first} on cannot be merged", text)
            return
        starts: array[int] = array("Q")
        times: array[int] = array("Q")
        for segment in old:
            starts.extend(segment.starts)
            times.extend(segment.times)
        newest = old[len(old) - 1]
        merged = result.segment(old[0].first, newest.last, old[0].first_time, newest.last_time, starts, times)
        if not stream.sealed.swap(old, [merged]):
            self.hub.leases.retire([result.path])


class Sealing(Timed):
    """The sealing of a stream: schedule, and work in progress.

    home  the directory of its files in the store
    size  bytes of bodies in a segment
    job   the segment being written; merging: whether a merge is in progress; paused: whether merges are suspended
    demanded  sequence number up to which sealing was requested, 0 for none; the requesters are notified at the end, with
              the failure in `problem`
    trimmed  sealed chunks that are still in the log
    """

    def __init__(self, stream: StreamQueue, hub: Segments) -> None:
        super().__init__()
        self.stream = stream
        self.hub = hub
        self.home: str = f"{hub.home}/{_slug(stream.name)}-{stream.id}"
        self.size = 1
        self.configure()
        self.job: _Seal | None = None
        self.merging = False
        self.trimmed: deque[StreamChunk] = deque()
        self.delay = 0
        self.not_before = 0
        self.again = 0
        self.paused = False
        self.demanded = 0
        self.problem = ""
        self.waiters: list[SealedWaiter] = []

    def configure(self) -> None:
        """Determine the size of segments from the settings of the stream."""
        stream = self.stream
        size = self.hub.settings.size
        if stream.settings.segment_size is not None:
            size = min(size, stream.settings.segment_size)
        if stream.max_bytes >= 0:
            size = min(size, max(stream.max_bytes // SHARE_OF_RETENTION, MIN_SEGMENT_BYTES))
        self.size = max(size, 1)

    def seal_all(self, waiter: SealedWaiter | None) -> None:
        """Seal all visible messages, and notify the waiter later."""
        if waiter is not None:
            self.waiters.append(waiter)
        self.problem = ""
        self.demanded = self.stream.visible_until
        self.not_before = 0
        now = self.stream.broker.timers.now()
        if self.job is None:
            self.stream.broker.timers.at(now + 1, self)

    def _notify_waiters(self, text: str) -> None:
        """Notify the waiters of success, or of the failure in `text`."""
        self.demanded = 0
        self.problem = text
        waiters = self.waiters
        self.waiters = []
        for waiter in waiters:
            waiter.sealed(text)

    def check(self, now: int) -> None:
        """Seal what is due. Called after every append."""
        stream = self.stream
        chunks = stream.chunks
        if self.job is not None:
            return
        if self.demanded and (not chunks or chunks[0].first >= self.demanded):
            self._notify_waiters("")
        if not chunks:
            return
        if now < self.not_before:
            self._wake_at(self.not_before)
            return
        due = stream.broker.timers.from_unix(chunks[0].time) + self.hub.settings.age
        if stream.bytes >= self.size or stream.count >= MAX_MESSAGES or due <= now or self.demanded:
            self._seal()
        else:
            self._wake_at(due)

    def _wake_at(self, due: int) -> None:
        if not self.trimmed and self.due != due:
            self.stream.broker.timers.at(due, self)

    def fire(self, now: int) -> None:
        if self.stream.deleted:
            return
        if self.trimmed:
            self._trim(TRIMMED)
        if self.trimmed:
            self.stream.broker.timers.at(now + 1, self)
            return
        self.check(now)
        self.merge(now)

    # Sealing

    def _seal(self) -> None:
        chosen: list[StreamChunk] = []
        n_bytes = count = 0
        for chunk in self.stream.chunks:
            chosen.append(chunk)
            n_bytes += chunk.bytes
            count += chunk.count
            if n_bytes >= self.size or count >= MAX_MESSAGES:
                break
        job = _Seal(self, self.hub, chosen)
        self.job = job
        self.hub.store.seal(job)

    def registered(self, job: _Seal, segment: Segment) -> None:
        """Release the messages of a segment from the log, once the manifest has the segment."""
        stream = self.stream
        self.job = None
        self.delay = 0
        self.not_before = 0
        self.again = 0
        if stream.deleted:
            return  # `stop` has removed it
        for chunk in job.chunks:
            stream.release_oldest(chunk)
            self.trimmed.append(chunk)
        stream.sealed.add(segment)
        self.hub.changed(stream)
        now = stream.broker.timers.now()
        self._trim(TRIMMED)
        if self.trimmed:
            stream.broker.timers.at(now + 1, self)
        stream.retain(now)
        stream.activate()
        self.merge(now)
        self.check(now)

    def failed(self, job: _Seal, kind: str, text: str) -> None:
        """Handle a failure to write a segment: the stream continues without it."""
        if job is not self.job:
            return
        stream = self.stream
        self.job = None
        job.abort()
        now = stream.broker.timers.now()
        if kind == AGAIN and self.again < MAX_RESTARTS:
            self.again += 1
        else:
            first = job.chunks[0].first - 1
            if self.demanded:
                self._notify_waiters(text)
            self.retry_later(f"its messages from offset {first} on remain unsealed", text)
        stream.retain(now)
        self.check(now)

    def retry_later(self, what: str, text: str) -> None:
        """Schedule a retry."""
        stream = self.stream
        self.delay = min(max(2 * self.delay, FIRST_RETRY), MAX_RETRY_DELAY)
        now = stream.broker.timers.now()
        self.not_before = now + self.delay
        logger.warning(
            "stream '%s' in vhost '%s': %s: %s; retrying in %d s",
            stream.name,
            stream.vhost.name,
            what,
            text,
            self.delay // 1000,
        )
        self._wake_at(self.not_before)

    def _trim(self, at_least: int) -> None:
        """Release at least this number of sealed messages from the log, in whole chunks."""
        stream = self.stream
        trimmed = self.trimmed
        count = 0
        while trimmed and count < at_least:
            chunk = trimmed.popleft()
            count += chunk.count
            stream.trim_chunk(chunk)

    def stop(self) -> None:
        """Stop: the stream is deleted."""
        if self.demanded:
            self._notify_waiters("the stream was deleted")
        job = self.job
        if job is not None:
            self.job = None
            job.abort()
            if job.segment is None:
                self.hub.store.abandon(job)
            else:
                # Its entry for the manifest is being committed.
                self.stream.sealed.unregister([job.segment])
        while self.trimmed:
            self._trim(TRIMMED)
        self.stream.broker.timers.cancel(self)

    # Merging

    def merge(self, now: int) -> None:
        """Merge small neighbours if there are enough of them."""
        if self.merging or self.paused or now < self.not_before or not self.hub.settings.sealing:
            return
        old = self._small_neighbours()
        if not old:
            return
        self.merging = True
        self.hub.store.merge(old, self.home, self.stream.name, _Merge(self, self.hub, old).done)

    def _small_neighbours(self) -> list[Segment]:
        """Return neighbours that are worth a merge; an empty list if there are none."""
        sealed = self.stream.sealed
        small = min(self.hub.settings.merge_below, self.size)
        run: list[Segment] = []
        n_bytes = count = 0
        for segment in sealed.segments:
            is_small = segment.body_bytes < small and segment.id not in sealed.locked
            if is_small and n_bytes + segment.body_bytes <= self.size and count + segment.count <= MAX_MESSAGES:
                run.append(segment)
                n_bytes += segment.body_bytes
                count += segment.count
                continue
            if _is_worth_it(run, n_bytes, small):
                return run
            run = [segment] if is_small else []
            n_bytes = segment.body_bytes if is_small else 0
            count = segment.count if is_small else 0
        return run if _is_worth_it(run, n_bytes, small) else []


def _is_worth_it(run: list[Segment], n_bytes: int, small: int) -> bool:
    return len(run) >= MERGED or (len(run) > 1 and n_bytes >= small)


def _slug(name: str) -> str:
    """Return a part of a name that is safe in a file name, for people who list the directory."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in name[:60])
    return kept.lstrip(".") or "stream"


def _bounds(chunks: list[StreamChunk]) -> tuple[array[int], array[int]]:
    """Return offset and time of the chunks of a segment; small chunks that were closed by age are joined."""
    starts: array[int] = array("Q")
    times: array[int] = array("Q")
    count = n_bytes = 0
    for chunk in chunks:
        if (
            not starts
            or count + chunk.count > CHUNK_ENTRIES
            or n_bytes + chunk.bytes > CHUNK_BYTES
            or chunk.last - times[len(times) - 1] >= CHUNK_TIME
        ):
            starts.append(chunk.first - 1)
            times.append(chunk.time)
            count = n_bytes = 0
        count += chunk.count
        n_bytes += chunk.bytes
    return starts, times

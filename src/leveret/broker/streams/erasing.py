"""Erasure in a stream: rewrite its sealed segments by rules, one after the other. Offsets do not change.

The store defines the rules. After a crash, each segment in the manifest is either unchanged or rewritten. An erasure
that was interrupted by a stop of the broker can be repeated safely.
"""

from __future__ import annotations

import json
import logging
from array import array
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.broker.log import CommitWaiter
from leveret.broker.metadata import Record
from leveret.broker.segments import Segment, Written
from leveret.broker.streams.sealing import SealedWaiter

if TYPE_CHECKING:
    from leveret.broker.segments import Segments
    from leveret.broker.streams.queue import StreamQueue

logger = logging.getLogger("leveret.broker")

REWRITE: Final = "rewrite"
SEALING: Final = "sealing"
REWRITING: Final = "rewriting"
DONE: Final = "done"
FAILED: Final = "failed"
# Maximum number of lookups of a segment that is merged in the meantime.
MAX_RESTARTS: Final = 5


class _Swapped(CommitWaiter):
    """Continues once the manifest has the new segment."""

    def __init__(self, erasing: Erasing) -> None:
        self.erasing = erasing

    def committed(self, batch: int) -> None:
        self.erasing.swapped()


class _Sealed(SealedWaiter):
    def __init__(self, erasing: Erasing) -> None:
        self.erasing = erasing

    def sealed(self, text: str) -> None:
        self.erasing.sealed(text)


# Rules of an erasure: a decoded JSON list, which the store interprets.
Rules: TypeAlias = list[Any]


class Erasing:
    """One erasure.

    rules   a JSON list for the store
    state   SEALING, REWRITING, DONE or FAILED, with the reason in `problem`
    counts  sums of the row counts that the store reports
    at      the first offset that was not processed
    """

    def __init__(self, stream: StreamQueue, hub: Segments, rules: Rules, dry_run: bool) -> None:
        self.stream = stream
        self.hub = hub
        self.rules = rules
        self.dry_run = dry_run
        self.state = REWRITING
        self.problem = ""
        self.counts: dict[str, int] = {}
        self.at = 0
        self.segments = 0
        self.rewritten = 0
        self.again = 0
        self.current: Segment | None = None

    @property
    def is_running(self) -> bool:
        return self.state == SEALING or self.state == REWRITING

    def begin(self, seal: bool) -> None:
        """Begin; with `seal`, seal all existing messages first."""
        sealing = self.stream.sealing
        if seal and sealing is not None:
            self.state = SEALING
            sealing.seal_all(_Sealed(self))
            return
        self._rewrite()

    def sealed(self, text: str) -> None:
        if text:
            self._end(f"not all messages could be sealed: {text}")
        else:
            self._rewrite()

    def _rewrite(self) -> None:
        """Process the segments. None of them is merged in the meantime, except those whose merge is in progress."""
        self.state = REWRITING
        if self.stream.sealing is not None:
            self.stream.sealing.paused = True
        self._next()

    def _next(self) -> None:
        stream = self.stream
        if stream.deleted:
            self._end("the stream was deleted")
            return
        segment: Segment | None = None
        for one in stream.segments:
            if one.last >= self.at:
                segment = one
                break
        if segment is None:
            self._end("")
            return
        self.current = segment
        call = {
            "segment": segment.entry(),
            "directory": _directory_of(segment.path),
            "stream": _text(stream.name),
            "rules": self.rules,
            "dry_run": self.dry_run,
        }
        self.hub.store.work(REWRITE, json.dumps(call).encode(), self.done)

    def done(self, result: bytes, kind: str, text: str) -> None:
        """Handle the end of the rewrite of the current segment."""
        segment = self.current
        assert segment is not None
        if kind:
            if self._is_current(segment):
                self._end(f"offsets {segment.first} to {segment.last}: {text}")
            else:
                self._retry_lookup()  # retention or a merge has removed the file
            return
        answer = json.loads(result)
        made = answer["segment"]
        if made is not None:
            new = _segment_of(made, segment)
            if not self.stream.swap([segment], [new]):
                self.hub.leases.retire([new.path])
                self._retry_lookup()
                return
            self.rewritten += 1
        for name, number in answer["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + int(number)
        self.segments += 1
        self.again = 0
        self.at = segment.last + 1
        if made is not None:
            self.stream.log.wait(_Swapped(self))
            self.stream.broker.end_turn()
        else:
            self._next()

    def swapped(self) -> None:
        self._next()

    def _is_current(self, segment: Segment) -> bool:
        return any([one.id == segment.id for one in self.stream.segments])  # noqa: C419

    def _retry_lookup(self) -> None:
        self.again += 1
        if self.again > MAX_RESTARTS:
            self._end("its segments keep changing")
        else:
            self._next()

    def _end(self, problem: str) -> None:
        self.state = FAILED if problem else DONE
        self.problem = problem
        self.current = None
        sealing = self.stream.sealing
        if sealing is not None:
            sealing.paused = False
        if problem:
            logger.error(
                "stream '%s' in vhost '%s': the erasure has ended at offset %d: %s",
                self.stream.name,
                self.stream.vhost.name,
                self.at,
                problem,
            )


def _segment_of(made: Record, old: Segment) -> Segment:
    """Return the manifest entry of a rewritten file, which covers the same offsets in the same chunks."""
    return Written.read(made).segment(
        old.first, old.last, old.first_time, old.last_time, array("Q", old.starts), array("Q", old.times)
    )


def _directory_of(path: str) -> str:
    return path[: path.rindex("/")] if "/" in path else ""


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

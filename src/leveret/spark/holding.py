"""Read leases on segment files: retention leaves the files of a batch alone while the batch is read.

A hold ends by itself, so that a query that has died keeps nothing. Whoever reads renews it meanwhile: the tasks, since a
batch read has no process of its own that lives as long as they do. Each of them renews the hold of the whole batch, also
of what others read, or have yet to read: tasks wait for a slot for as long as the tasks before them take.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple

from leveret.segments.manifest import Segment
from leveret.spark.connection import ControlClient, Endpoint
from leveret.spark.topology import segments_of

log = logging.getLogger("leveret.spark")

# Seconds that a hold lasts where nobody renews it.
HOLD: Final = 900.0


class Held(NamedTuple):
    """Offsets of a stream, both inclusive, whose files are held."""

    stream: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a batch holds.

    holder   the name that the broker knows it by; each batch reader and each query has its own
    seconds  that it lasts from now on, or from the last renewal
    counts   whoever holds asks what the tasks have lost, when it releases
    """

    holder: str
    seconds: float
    held: tuple[Held, ...] = ()
    counts: bool = False


def hold(control: ControlClient, holding: Holding, held: Held) -> tuple[Segment, ...]:
    """The segments with these offsets, whose files stay. The same again is a renewal, also of those that no manifest names
    any more."""
    return segments_of(control.request("stream.hold", stream=held.stream, holder=holding.holder, first=held.first,
                                       last=held.last, seconds=holding.seconds))


class Renewal:
    """Renews a hold, in a thread of its own, from the beginning of a `with` statement to its end: Spark may take its time
    between two batches of a task."""

    def __init__(self, endpoint: Endpoint, holding: Holding) -> None:
        self.endpoint = endpoint
        self.holding = holding
        self._over = threading.Event()

    def __enter__(self) -> Renewal:
        if self.holding.held:
            threading.Thread(target=self._run, name="leveret-spark-hold", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._over.set()

    def _run(self) -> None:
        pause = self.holding.seconds / 3
        while not self._over.wait(pause):
            try:
                # A connection that is idle for minutes is not worth keeping.
                with closing(ControlClient(self.endpoint, "leveret-spark-hold", pause)) as control:
                    for held in self.holding.held:
                        hold(control, self.holding, held)
            except Exception as error:
                log.warning("segments may not stay until they are read, but are read over AMQP then: %s", error)

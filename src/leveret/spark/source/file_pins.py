"""File pins: retention keeps the segment files of a batch while tasks read them.

A pin expires, so a query that died keeps no files. Tasks renew it, because a batch read has no process that lives as long
as they do. Each task renews the pin of the whole batch, including ranges of other tasks, which may still wait for a slot.
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
from leveret.spark.source.topology import segments_of

logger = logging.getLogger("leveret.spark")

# Seconds that a pin lasts unless it is renewed.
PIN_SECONDS: Final = 900.0


class PinnedRange(NamedTuple):
    """A range of offsets, both inclusive, whose files are pinned."""

    stream: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class FilePin:
    """The pin of a batch.

    Attributes:
        holder: Name of the pin at the broker, unique per batch reader and query.
        seconds: Lifetime from now, or from the last renewal.
        ranges: The pinned ranges.
        counts_losses: Whether releasing the pin returns the number of messages that tasks lost.
    """

    holder: str
    seconds: float
    ranges: tuple[PinnedRange, ...] = ()
    counts_losses: bool = False


def pin(control: ControlClient, file_pin: FilePin, pinned: PinnedRange) -> tuple[Segment, ...]:
    """Pin the segments with these offsets and return them.

    Repeating the call renews the pin, also of files that the manifest no longer names.
    """
    return segments_of(
        control.request(
            "stream.hold",
            stream=pinned.stream,
            holder=file_pin.holder,
            first=pinned.first,
            last=pinned.last,
            seconds=file_pin.seconds,
        )
    )


class PinRenewal:
    """Renews a pin in a thread while its `with` block runs, since Spark may pause a task between two batches."""

    def __init__(self, endpoint: Endpoint, file_pin: FilePin) -> None:
        self.endpoint = endpoint
        self.file_pin = file_pin
        self._stopped = threading.Event()

    def __enter__(self) -> PinRenewal:
        if self.file_pin.ranges:
            threading.Thread(target=self._run, name="leveret-spark-pin", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()

    def _run(self) -> None:
        interval = self.file_pin.seconds / 3
        while not self._stopped.wait(interval):
            try:
                # The connection would be idle for minutes, so each renewal opens one.
                with closing(ControlClient(self.endpoint, "leveret-spark-pin", interval)) as control:
                    for pinned in self.file_pin.ranges:
                        pin(control, self.file_pin, pinned)
            except Exception as error:
                logger.warning(
                    "segment files could not be pinned; if they are removed, their messages are read over AMQP: %s", error
                )

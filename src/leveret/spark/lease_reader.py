"""Classic queues into Structured Streaming, exactly once by a lease.

The broker plans numbered batches, which stay as they are until they are committed: a batch that Spark replays is read
again as it was. Whoever acquires the lease later fences whoever had it before.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.spark.connection import ControlClient, Endpoint, endpoint_of
from leveret.spark.errors import OffsetError, OptionError, RequestRefused
from leveret.spark.lease_fetch import Slice, read_slice
from leveret.spark.lease_offsets import LeaseOffset, from_json
from leveret.spark.limiting import limit_of
from leveret.spark.options import Settings

log = logging.getLogger("leveret.spark")

# What a batch has at most where no option says it.
MOST: Final = 10_000_000
# Messages for which another task is worth its while.
WORTH_A_TASK: Final = 50_000


@dataclass(frozen=True, slots=True)
class LeaseReading:
    """What tasks need."""

    endpoint: Endpoint
    columns: tuple[str, ...] | None
    headers_format: str
    prefetch: int | None
    batch_rows: int


class LeasePartition(InputPartition):
    """A slice of a batch."""

    def __init__(self, part: Slice) -> None:
        super().__init__(None)
        self.part = part

    def __repr__(self) -> str:
        part = self.part
        return f"LeasePartition({part.queue}/{part.lease} batch {part.batch}[{part.first}:{part.first + part.count}])"


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` of a classic or quorum queue. Spark keeps one for a query in a process of its own, which acquires the
    lease when it is first asked for something; those in tasks only read."""

    def __init__(self, settings: Settings, queue: str) -> None:
        if settings.lease is None:
            raise OptionError(f"option lease: missing; expected the name of the lease by which queue {queue!r} is "
                              "read, the "
                              "same after each restart of the query, and another one for another query")
        self.settings = settings
        self.queue = queue
        self.lease = settings.lease
        self.reading = LeaseReading(endpoint_of(settings), settings.columns, settings.headers_format, settings.prefetch,
                                    settings.arrow_batch_rows)
        self.control = ControlClient(self.reading.endpoint, f"leveret-spark lease {self.lease}")
        self._epoch = 0
        self._committed = 0
        # Messages of the planned batches that are not committed, by their numbers.
        self._planned: dict[int, int] = {}
        # With AvailableNow: how many messages are still to be read.
        self._left: int | None = None
        self._triggered = time.monotonic()
        self._reached = 0

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.control.request(operation, queue=self.queue, lease=self.lease, **arguments)

    def _acquire(self) -> None:
        """Once in the life of a query's process."""
        if self._epoch:
            return
        try:
            reply = self._ask("lease.acquire", timeout=self.settings.lease_timeout)
        except RequestRefused as error:
            raise OptionError(f"option queue: {error.message}") from None
        self._epoch = int(reply["epoch"])
        self._committed = int(reply["committed"])
        self._planned = {int(batch["batch"]): int(batch["count"]) for batch in reply["planned"]}

    def _check(self, offset: LeaseOffset) -> None:
        """See that a checkpoint is of this lease, and that the broker still has what comes after it."""
        if (offset.lease, offset.queue) != (self.lease, self.queue):
            raise OffsetError(f"the checkpoint is of lease {offset.lease!r} of queue {offset.queue!r}, the options "
                              "say lease "
                              f"{self.lease!r} of queue {self.queue!r}; expected a checkpoint of its own for each "
                              "query")
        if offset.batch < self._committed:
            raise OffsetError(f"the checkpoint went back: it ends with batch {offset.batch} of lease {self.lease!r}, "
                              "and the "
                              f"messages up to batch {self._committed} are settled already; expected the latest "
                              "checkpoint, "
                              "or a new one, which begins with what the queue has")
        if offset.batch > self._committed and offset.batch not in self._planned:
            raise OffsetError(f"lease {self.lease!r} of queue {self.queue!r} has no batch {offset.batch}, which the "
                              "checkpoint "
                              "has: the lease was released, and its messages are in the queue again, or the queue is "
                              "another one; expected a new checkpoint (messages of that batch may come again)")

    # How far it goes

    def initialOffset(self) -> dict[str, Any]:
        self._acquire()
        return LeaseOffset(self.lease, self.queue, self._committed).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._acquire()
        self._left = self._available() + sum(self._planned.values())

    def _available(self) -> int:
        """Messages that wait in the queue."""
        return int(self.control.request("queue.describe", queue=self.queue)["messages"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        self._acquire()
        self._check(begin)
        self._reached = begin.batch
        settings = self.settings
        most: int = MOST
        octets: int | None = None
        if not isinstance(limit, ReadAllAvailable):
            most, octets = settings.max_messages_per_trigger or MOST, settings.max_bytes_per_trigger
        following = min((batch for batch in self._planned if batch > begin.batch), default=None)
        if following is None:
            if self._left is not None:
                most = min(most, self._left)
            if not most or self._waits(limit):
                return start
            reply = self._ask("lease.plan", epoch=self._epoch, after=begin.batch, max_messages=min(most, MOST),
                              max_octets=octets)
            if not reply["count"]:
                return start
            following = int(reply["batch"])
            self._planned[following] = int(reply["count"])
        count = self._planned[following]
        if self._left is not None:
            self._left = max(self._left - count, 0)
        self._triggered = time.monotonic()
        self._reached = following
        return LeaseOffset(self.lease, self.queue, following, count).to_json()

    def _waits(self, limit: ReadLimit) -> bool:
        least = self.settings.min_messages_per_trigger
        return (least is not None and self._left is None and not isinstance(limit, ReadAllAvailable)
                and time.monotonic() - self._triggered < self.settings.max_trigger_delay and self._available() < least)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._epoch:
            return None
        behind = sum(count for batch, count in self._planned.items() if batch > self._reached)
        return {"lease": self.lease, "queue": self.queue, "batch": max([self._committed, *self._planned]),
                "lag": self._available() + behind}

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        if begin.batch == stop.batch:
            return []
        self._acquire()
        self._check(begin)
        parts: list[InputPartition] = []
        for number in range(begin.batch + 1, stop.batch + 1):
            count = self._planned.get(number)
            if count is None:
                count = self._plan_again(number, stop)
            parts += [LeasePartition(Slice(self.queue, self.lease, self._epoch, number, first, size))
                      for first, size in _slices(count, self.settings.min_partitions)]
        return parts

    def _plan_again(self, number: int, stop: LeaseOffset) -> int:
        """A batch of the checkpoint that nobody has read, and that the broker gave back to the queue when the time of the
        lease was over: others take its place."""
        if number < stop.batch or not stop.count:
            raise OffsetError(f"lease {self.lease!r} of queue {self.queue!r} has no batch {number}, which the "
                              "checkpoint has; "
                              "expected a new checkpoint")
        reply = self._ask("lease.plan", epoch=self._epoch, after=number - 1, max_messages=stop.count)
        count = int(reply["count"])
        if count and int(reply["batch"]) != number:
            raise OffsetError(f"lease {self.lease!r} of queue {self.queue!r} goes on with batch {reply['batch']}, the "
                              f"checkpoint with {number}; expected a new checkpoint")
        log.warning("batch %d of lease %r was given back to the queue before it was read; %d messages take its place",
                    number, self.lease, count)
        if count:
            self._planned[number] = count
        return count

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LeasePartition)
        reading = self.reading
        return read_slice(reading.endpoint, partition.part, reading.columns, reading.headers_format, reading.prefetch,
                          reading.batch_rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Comes one batch late: when the next one is made, or at the next start."""
        stop = from_json(end)
        self._acquire()
        for number in sorted(batch for batch in self._planned if batch <= stop.batch):
            self._committed = int(self._ask("lease.commit", epoch=self._epoch, batch=number)["committed"])
            del self._planned[number]

    def stop(self) -> None:
        # The lease stays: the next start of the query goes on with it.
        self.control.close()


def _slices(count: int, wanted: int | None) -> Iterator[tuple[int, int]]:
    """First index and size of the slices of a batch."""
    tasks = wanted or min(os.cpu_count() or 1, -(-count // WORTH_A_TASK))
    tasks = max(min(tasks, count), 1)
    for task in range(tasks):
        first, stop = count * task // tasks, count * (task + 1) // tasks
        if stop > first:
            yield first, stop - first

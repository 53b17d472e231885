"""Streaming reads of classic and quorum queues, exactly once with a lease.

The broker forms numbered lease batches, which do not change until they are committed, so a batch that Spark replays has the
same messages. Acquiring the lease fences earlier owners.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.segments.typed_json import Document
from leveret.spark.connection import ControlClient, Endpoint, endpoint_of
from leveret.spark.errors import OffsetError, OptionError, RequestRefused
from leveret.spark.lease.fetch import LeaseSlice, read_slice
from leveret.spark.options import Settings
from leveret.spark.read_limits import default_tasks, read_limit
from leveret.spark.task_input import InTask

logger = logging.getLogger("leveret.spark")

# Limit of a batch if no option sets one.
MAX_MESSAGES_PER_BATCH: Final = 10_000_000
# Version of the checkpoint offsets.
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LeaseOffset:
    """A checkpoint offset.

        {"version": 1, "lease": "name", "queue": "orders", "batch": 17, "count": 1000}

    Attributes:
        batch: The broker's number of the last lease batch that was read.
        count: The number of messages in it.
    """

    lease: str
    queue: str
    batch: int
    count: int = 0

    def to_json(self) -> dict[str, Document]:
        return {"version": VERSION, "lease": self.lease, "queue": self.queue, "batch": self.batch, "count": self.count}


def from_json(value: Document) -> LeaseOffset:
    """Parse an offset. Raises OffsetError if it is not the offset of a lease."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(
                f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: another "
                "version of Leveret wrote it"
            )
        return LeaseOffset(str(value["lease"]), str(value["queue"]), int(value["batch"]), int(value["count"]))
    except (KeyError, TypeError, ValueError):
        raise OffsetError(
            f"the checkpoint's offsets are not those of a lease: {str(value)[:200]}; expected the "
            "checkpoint of the same query"
        ) from None


@dataclass(frozen=True, slots=True)
class LeaseReading:
    """The part of the reader that tasks need."""

    endpoint: Endpoint
    columns: tuple[str, ...] | None
    headers_format: str
    prefetch: int | None
    batch_rows: int


class LeasePartition(InputPartition):
    """A slice of a lease batch."""

    def __init__(self, part: LeaseSlice) -> None:
        super().__init__(None)
        self.part = part

    def __repr__(self) -> str:
        part = self.part
        return f"LeasePartition({part.queue}/{part.lease} batch {part.batch}[{part.first}:{part.first + part.count}])"


class LeaseReader(InTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` of a classic or quorum queue.

    Spark keeps one instance per query in a separate process, which acquires the lease on first use; instances in tasks only
    read.
    """

    def __init__(self, settings: Settings, queue: str) -> None:
        if settings.lease is None:
            raise OptionError(
                f"option lease: missing; expected a name for the lease on queue {queue!r}: the same after "
                "each restart of the query, and a different one for each query"
            )
        self.settings = settings
        self.queue = queue
        self.lease = settings.lease
        self.reading = LeaseReading(
            endpoint_of(settings), settings.columns, settings.headers_format, settings.prefetch, settings.arrow_batch_rows
        )
        self.control = ControlClient(self.reading.endpoint, f"leveret-spark lease {self.lease}")
        self._epoch = 0
        self._committed = 0
        # Sizes of the lease batches that are not committed, by number.
        self._uncommitted: dict[int, int] = {}
        # With availableNow: messages left to read in this run.
        self._remaining: int | None = None
        self._triggered = time.monotonic()
        self._reached = 0

    def _request(self, operation: str, **arguments: Document) -> dict[str, Document]:
        return self.control.request(operation, queue=self.queue, lease=self.lease, **arguments)

    def _acquire(self) -> None:
        """Acquire the lease, once per process of the query."""
        if self._epoch:
            return
        try:
            reply = self._request("lease.acquire", timeout=self.settings.lease_timeout)
        except RequestRefused as error:
            raise OptionError(f"option queue: {error.message}") from None
        self._epoch = int(reply["epoch"])
        self._committed = int(reply["committed"])
        self._uncommitted = {int(batch["batch"]): int(batch["count"]) for batch in reply["planned"]}

    def _check(self, offset: LeaseOffset) -> None:
        """Check that an offset belongs to this lease, and that the broker still has the batches after it."""
        if (offset.lease, offset.queue) != (self.lease, self.queue):
            raise OffsetError(
                f"the checkpoint is of lease {offset.lease!r} of queue {offset.queue!r}, but the options "
                f"name lease {self.lease!r} of queue {self.queue!r}; expected a separate checkpoint for "
                "each query"
            )
        if offset.batch < self._committed:
            raise OffsetError(
                f"the checkpoint is outdated: it ends with batch {offset.batch} of lease {self.lease!r}, but "
                f"messages up to batch {self._committed} are already settled; expected the latest "
                "checkpoint, or a new one, which starts with the current messages of the queue"
            )
        if offset.batch > self._committed and offset.batch not in self._uncommitted:
            raise OffsetError(
                f"lease {self.lease!r} of queue {self.queue!r} has no batch {offset.batch}, which is in the "
                "checkpoint: the lease was released and its messages returned to the queue, or the queue was "
                "declared again; use a new checkpoint (messages of that batch may be read twice)"
            )

    # Offsets

    def initialOffset(self) -> dict[str, Document]:
        self._acquire()
        return LeaseOffset(self.lease, self.queue, self._committed).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._acquire()
        self._remaining = self._available() + sum(self._uncommitted.values())

    def _available(self) -> int:
        """Return the number of messages ready in the queue."""
        return int(self.control.request("queue.describe", queue=self.queue)["messages"])

    def latestOffset(self, start: dict[str, Document], limit: ReadLimit) -> dict[str, Document]:
        begin = from_json(start)
        self._acquire()
        self._check(begin)
        self._reached = begin.batch
        settings = self.settings
        max_messages: int = MAX_MESSAGES_PER_BATCH
        max_bytes: int | None = None
        if not isinstance(limit, ReadAllAvailable):
            max_messages = settings.max_messages_per_trigger or MAX_MESSAGES_PER_BATCH
            max_bytes = settings.max_bytes_per_trigger
        following = min((batch for batch in self._uncommitted if batch > begin.batch), default=None)
        if following is None:
            if self._remaining is not None:
                max_messages = min(max_messages, self._remaining)
            if not max_messages or self._should_wait(limit):
                return start
            reply = self._request(
                "lease.plan",
                epoch=self._epoch,
                after=begin.batch,
                max_messages=min(max_messages, MAX_MESSAGES_PER_BATCH),
                max_octets=max_bytes,
            )
            if not reply["count"]:
                return start
            following = int(reply["batch"])
            self._uncommitted[following] = int(reply["count"])
        count = self._uncommitted[following]
        if self._remaining is not None:
            self._remaining = max(self._remaining - count, 0)
        self._triggered = time.monotonic()
        self._reached = following
        return LeaseOffset(self.lease, self.queue, following, count).to_json()

    def _should_wait(self, limit: ReadLimit) -> bool:
        min_messages = self.settings.min_messages_per_trigger
        return (
            min_messages is not None
            and self._remaining is None
            and not isinstance(limit, ReadAllAvailable)
            and time.monotonic() - self._triggered < self.settings.max_trigger_delay
            and self._available() < min_messages
        )

    def reportLatestOffset(self) -> dict[str, Document] | None:
        if not self._epoch:
            return None
        behind = sum(count for batch, count in self._uncommitted.items() if batch > self._reached)
        return {
            "lease": self.lease,
            "queue": self.queue,
            "batch": max([self._committed, *self._uncommitted]),
            "lag": self._available() + behind,
        }

    # Batches

    def partitions(self, start: dict[str, Document], end: dict[str, Document]) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        if begin.batch == stop.batch:
            return []
        self._acquire()
        self._check(begin)
        parts: list[InputPartition] = []
        for number in range(begin.batch + 1, stop.batch + 1):
            count = self._uncommitted.get(number)
            if count is None:
                count = self._replace_batch(number, stop)
            parts += [
                LeasePartition(LeaseSlice(self.queue, self.lease, self._epoch, number, first, size))
                for first, size in _slices(count, self.settings.min_partitions, self.settings.max_records_per_partition)
            ]
        return parts

    def _replace_batch(self, number: int, stop: LeaseOffset) -> int:
        """Replace a batch of the checkpoint that was never read and that the broker returned to the queue.

        The broker does so when leaseTimeout passes. The new batch has other messages.
        """
        if number < stop.batch or not stop.count:
            raise OffsetError(
                f"lease {self.lease!r} of queue {self.queue!r} has no batch {number}, which is in the "
                "checkpoint; use a new checkpoint"
            )
        reply = self._request("lease.plan", epoch=self._epoch, after=number - 1, max_messages=stop.count)
        count = int(reply["count"])
        if count and int(reply["batch"]) != number:
            raise OffsetError(
                f"the next batch of lease {self.lease!r} of queue {self.queue!r} is {reply['batch']}, but "
                f"the checkpoint expects {number}; use a new checkpoint"
            )
        logger.warning(
            "batch %d of lease %r returned to the queue before it was read; %d other messages replace it",
            number,
            self.lease,
            count,
        )
        if count:
            self._uncommitted[number] = count
        return count

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LeasePartition)
        reading = self.reading
        return read_slice(
            reading.endpoint, partition.part, reading.columns, reading.headers_format, reading.prefetch, reading.batch_rows
        )

    def commit(self, end: dict[str, Document]) -> None:
        """Commit up to `end`. Spark calls this when it plans the next batch, or at the next start."""
        stop = from_json(end)
        self._acquire()
        for number in sorted(batch for batch in self._uncommitted if batch <= stop.batch):
            self._committed = int(self._request("lease.commit", epoch=self._epoch, batch=number)["committed"])
            del self._uncommitted[number]

    def stop(self) -> None:
        # The lease stays acquired for the next start of the query.
        self.control.close()


def _slices(count: int, wanted: int | None, max_records: int | None) -> Iterator[tuple[int, int]]:
    """Yield (first index, size) of the slices of a batch."""
    tasks = wanted or default_tasks(count)
    tasks = max(min(tasks, count), 1 if max_records is None else -(-count // max_records))
    for task in range(tasks):
        first, stop = count * task // tasks, count * (task + 1) // tasks
        if stop > first:
            yield first, stop - first

"""Streaming reads of any AMQP broker's queue, or of a stream of RabbitMQ, through a spool.

The process that plans batches for the driver consumes the messages and acknowledges them once they are on disk. So no
message is lost, but a message that the broker redelivers because the acknowledgement was lost is in the spool twice: at
least once from the broker to the spool, exactly once from the spool to Spark. A stream is consumed from the offset on that
the spool stores with the messages, so that each message is in the spool once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.segments.typed_json import Document
from leveret.spark.connection import endpoint_of
from leveret.spark.errors import OffsetError, OptionError, ReadFailed
from leveret.spark.options import Settings
from leveret.spark.read_limits import read_limit
from leveret.spark.schema import Projection
from leveret.spark.spool.consumer import SpoolConsumer
from leveret.spark.spool.directory import Spool, SpoolFile
from leveret.spark.spool.stream_consumer import StreamConsumer
from leveret.spark.task_input import InTask

logger = logging.getLogger("leveret.spark")

VERSION: Final = 1
# Messages per trigger if no option sets a limit, and limits of a file.
MAX_MESSAGES_PER_TRIGGER: Final = 1_000_000
MAX_FILE_MESSAGES: Final = 50_000
MAX_FILE_BYTES: Final = 64 << 20
# Maximum number of unacked messages.
PREFETCH: Final = 5000
# Messages per task.
MESSAGES_PER_TASK: Final = 50_000


@dataclass(frozen=True, slots=True)
class SpoolReading:
    """The part of the reader that tasks need."""

    queue: str
    columns: tuple[str, ...] | None
    headers_format: str
    batch_rows: int


class SpoolPartition(InputPartition):
    """Files, and the range of offsets in them to read: from `first` to before `stop`."""

    def __init__(self, files: tuple[SpoolFile, ...], first: int, stop: int) -> None:
        super().__init__(None)
        self.files = files
        self.first = first
        self.stop = stop


class SpoolReader(InTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` in mode spool.

    The instance that Spark keeps for the query opens the spool, and consumes when it is asked for the latest offset; the
    instances in tasks only read files.
    """

    def __init__(self, settings: Settings, queue: str, kind: str = "queue") -> None:
        """Create the reader of a queue, or of the `kind` "stream". Raises OptionError without a directory."""
        if settings.spool_dir is None:
            raise OptionError(
                f"option spoolDir: missing; expected a directory that keeps messages of {kind} {queue!r} "
                "until they are committed (mode spool)"
            )
        self.settings = settings
        self.queue = queue
        self.kind = kind
        self.reading = SpoolReading(queue, settings.columns, settings.headers_format, settings.arrow_batch_rows)
        self.endpoint = endpoint_of(settings)
        self._spool: Spool | None = None
        self._consumer: SpoolConsumer | None = None
        # With availableNow: messages left to consume in this run.
        self._remaining: int | None = None
        self._triggered = time.monotonic()
        # End of the last planned batch.
        self._reached = 0

    def _open(self) -> Spool:
        if self._spool is None:
            parameters = self.endpoint.parameters()
            assert self.settings.spool_dir is not None
            source = {"queue": self.queue, "vhost": parameters.vhost, "broker": f"{parameters.host}:{parameters.port}"}
            if self.kind != "queue":
                source["kind"] = self.kind
            self._spool = Spool(self.settings.spool_dir, source)
        return self._spool

    def _open_consumer(self) -> SpoolConsumer:
        if self._consumer is None:
            prefetch = self.settings.prefetch or PREFETCH
            if self.kind == "stream":
                self._consumer = StreamConsumer(self.endpoint, self.queue, prefetch, self._open().position)
            else:
                self._consumer = SpoolConsumer(self.endpoint, self.queue, prefetch)
        return self._consumer

    def __getstate__(self) -> dict[str, Document]:
        return {**self.__dict__, "_spool": None, "_consumer": None}

    def _offset(self, spool: Spool, next: int) -> dict[str, Document]:
        return {"version": VERSION, "spool": spool.id, "next": next}

    def _read_offset(self, value: Document, spool: Spool) -> int:
        try:
            version, owner, offset = value["version"], value["spool"], int(value["next"])
        except (KeyError, TypeError, ValueError):
            raise OffsetError(
                f"the checkpoint's offsets are not those of a spool: {str(value)[:200]}; expected the "
                "checkpoint of the same query"
            ) from None
        if version != VERSION:
            raise OffsetError(
                f"the checkpoint has offsets of version {version}; expected {VERSION}: another version of Leveret wrote it"
            )
        if owner != spool.id:
            raise OffsetError(
                f"the checkpoint is of another spool than {str(spool.directory)!r}; expected a checkpoint "
                "and a spoolDir that belong together, or new ones"
            )
        return offset

    # Offsets

    def initialOffset(self) -> dict[str, Document]:
        spool = self._open()
        return self._offset(spool, spool.first)

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._open()
        self._remaining = self._open_consumer().available()

    def latestOffset(self, start: dict[str, Document], limit: ReadLimit) -> dict[str, Document]:
        spool = self._open()
        begin = self._read_offset(start, spool)
        spool.files_between(begin, begin)
        self._reached = begin
        max_messages: int = MAX_MESSAGES_PER_TRIGGER
        if not isinstance(limit, ReadAllAvailable):
            max_messages = self.settings.max_messages_per_trigger or MAX_MESSAGES_PER_TRIGGER
        if spool.next - begin < max_messages:
            self._fetch(spool, max_messages - (spool.next - begin))
        stop = min(spool.next, begin + max_messages)
        if self._should_wait(stop - begin, limit):
            return start
        self._triggered = time.monotonic()
        self._reached = stop
        return self._offset(spool, stop)

    def _fetch(self, spool: Spool, max_messages: int) -> None:
        """Move messages from the broker into files."""
        bytes_left = self.settings.max_bytes_per_trigger or 1 << 62
        consumer = self._open_consumer()
        while max_messages > 0 and bytes_left > 0:
            if self._remaining is not None:
                max_messages = min(max_messages, self._remaining)
            if max_messages <= 0:
                return
            messages = consumer.take(
                min(max_messages, MAX_FILE_MESSAGES), min(bytes_left, MAX_FILE_BYTES), wait=self._remaining is not None
            )
            if messages is None:
                return
            count = len(messages)
            spool.append(messages.batch(spool.next, self.queue), messages.position)
            consumer.reached(messages.position)
            # Only now may the broker remove them.
            messages.acknowledge()
            max_messages -= count
            bytes_left -= messages.size
            if self._remaining is not None:
                self._remaining -= count

    def _should_wait(self, available: int, limit: ReadLimit) -> bool:
        min_messages = self.settings.min_messages_per_trigger
        return (
            min_messages is not None
            and self._remaining is None
            and not isinstance(limit, ReadAllAvailable)
            and available < min_messages
            and time.monotonic() - self._triggered < self.settings.max_trigger_delay
        )

    def reportLatestOffset(self) -> dict[str, Document] | None:
        if self._spool is None or self._consumer is None:
            return None
        waiting = self._consumer.pending()
        return {
            **self._offset(self._spool, self._spool.next),
            "waiting": waiting,
            "lag": waiting + self._spool.next - self._reached,
        }

    # Batches

    def partitions(self, start: dict[str, Document], end: dict[str, Document]) -> Sequence[InputPartition]:
        spool = self._open()
        first, stop = self._read_offset(start, spool), self._read_offset(end, spool)
        if first >= stop:
            return []
        parts: list[InputPartition] = []
        files: list[SpoolFile] = []
        begin = at = first
        for file in spool.files_between(first, stop):
            files.append(file)
            at = min(file.stop, stop)
            if at - begin >= MESSAGES_PER_TASK:
                parts.append(SpoolPartition(tuple(files), begin, at))
                files, begin = [], at
        if files:
            parts.append(SpoolPartition(tuple(files), begin, at))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        reading = self.reading
        projection = Projection(reading.columns, reading.headers_format)
        expected = partition.first
        for file in partition.files:
            try:
                table = pq.read_table(file.path, partitioning=None)
            except (OSError, pa.ArrowException) as error:
                raise ReadFailed(
                    f"the spool's file {file.path!r} cannot be read: {error}; option spoolDir: expected a "
                    "directory that every worker can read"
                ) from None
            if table.num_rows != file.stop - file.first:
                raise ReadFailed(
                    f"the spool's file {file.path!r} has {table.num_rows} messages; expected {file.stop - file.first}"
                )
            low = max(partition.first, file.first)
            high = min(partition.stop, file.stop)
            if low != expected:
                raise ReadFailed(f"the spool's file {file.path!r} begins at offset {low}; expected {expected}")
            expected = high
            chosen = table.slice(low - file.first, high - low)
            yield from projection.table(chosen).combine_chunks().to_batches(reading.batch_rows)

    def commit(self, end: dict[str, Document]) -> None:
        """Remove files up to `end`. Spark calls this when it plans the next batch."""
        spool = self._open()
        spool.remove_before(self._read_offset(end, spool))

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None

"""Queues of any AMQP broker into Structured Streaming, by way of a directory.

The process of the driver that plans batches consumes with acknowledgements, and acknowledges what is on disk. So nothing
is lost, and what the broker delivers again (because we or it went away before the acknowledgement) is there twice: at least
once from the broker, exactly once from the spool on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.spark.connection import endpoint_of
from leveret.spark.errors import OffsetError, OptionError, ReadFailed
from leveret.spark.limiting import limit_of
from leveret.spark.options import Settings
from leveret.spark.schema import arrow_schema
from leveret.spark.spool import Spool, SpoolFile
from leveret.spark.spool_consumer import SpoolConsumer

log = logging.getLogger("leveret.spark")

VERSION: Final = 1
# Messages that one trigger takes at most, where no option says it, and those of one file.
MOST: Final = 1_000_000
FILE_MESSAGES: Final = 50_000
FILE_OCTETS: Final = 64 << 20
# Messages that may be on their way and not acknowledged.
PREFETCH: Final = 5000
# Messages for which another task is worth its while.
WORTH_A_TASK: Final = 50_000


@dataclass(frozen=True, slots=True)
class SpoolReading:
    """What tasks need."""

    queue: str
    columns: tuple[str, ...] | None
    headers_format: str
    batch_rows: int


class SpoolPartition(InputPartition):
    """Some files; of their messages those from `first` to before `stop`."""

    def __init__(self, files: tuple[SpoolFile, ...], first: int, stop: int) -> None:
        super().__init__(None)
        self.files = files
        self.first = first
        self.stop = stop


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` in mode spool. The one that Spark keeps for a query opens the spool, and consumes when it is asked how
    far it goes; those in tasks only read files."""

    def __init__(self, settings: Settings, queue: str) -> None:
        if settings.spool_dir is None:
            raise OptionError(f"option spoolDir: missing; expected a directory for the messages of queue {queue!r} "
                              "until they "
                              "are committed (mode spool)")
        self.settings = settings
        self.queue = queue
        self.reading = SpoolReading(queue, settings.columns, settings.headers_format, settings.arrow_batch_rows)
        self.endpoint = endpoint_of(settings)
        self._spool: Spool | None = None
        self._consumer: SpoolConsumer | None = None
        # With AvailableNow: how many messages are still to be taken.
        self._left: int | None = None
        self._triggered = time.monotonic()
        # Where the batch ends that was planned last.
        self._reached = 0

    def _open(self) -> Spool:
        if self._spool is None:
            parameters = self.endpoint.parameters()
            assert self.settings.spool_dir is not None
            self._spool = Spool(self.settings.spool_dir, {
                "queue": self.queue, "vhost": parameters.vhost, "broker": f"{parameters.host}:{parameters.port}"})
        return self._spool

    def _consume(self) -> SpoolConsumer:
        if self._consumer is None:
            self._consumer = SpoolConsumer(self.endpoint, self.queue, self.settings.prefetch or PREFETCH)
        return self._consumer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spool": None, "_consumer": None}

    def _offset(self, spool: Spool, next: int) -> dict[str, Any]:
        return {"version": VERSION, "spool": spool.id, "next": next}

    def _read_offset(self, value: dict[str, Any], spool: Spool) -> int:
        try:
            version, owner, offset = value["version"], value["spool"], int(value["next"])
        except (KeyError, TypeError, ValueError):
            raise OffsetError(f"the checkpoint has offsets of something else than a spool: {str(value)[:200]}; "
                              "expected the "
                              "checkpoint of the same query") from None
        if version != VERSION:
            raise OffsetError(f"the checkpoint has offsets of version {version}; expected {VERSION}: it was written "
                              "by another "
                              "release of Leveret")
        if owner != spool.id:
            raise OffsetError(f"the checkpoint is of another spool than {str(spool.directory)!r}; expected checkpoint "
                              "and "
                              "spoolDir that belong together, or new ones")
        return offset

    # How far it goes

    def initialOffset(self) -> dict[str, Any]:
        spool = self._open()
        return self._offset(spool, spool.first)

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._open()
        self._left = self._consume().waiting()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        spool = self._open()
        begin = self._read_offset(start, spool)
        spool.between(begin, begin)
        self._reached = begin
        most: int = MOST
        if not isinstance(limit, ReadAllAvailable):
            most = self.settings.max_messages_per_trigger or MOST
        if spool.next - begin < most:
            self._take(spool, most - (spool.next - begin))
        stop = min(spool.next, begin + most)
        if self._waits(stop - begin, limit):
            return start
        self._triggered = time.monotonic()
        self._reached = stop
        return self._offset(spool, stop)

    def _take(self, spool: Spool, most: int) -> None:
        """What the broker has for us now, in files."""
        octets_left = self.settings.max_bytes_per_trigger or 1 << 62
        consumer = self._consume()
        while most > 0 and octets_left > 0:
            if self._left is not None:
                most = min(most, self._left)
            if most <= 0:
                return
            taken = consumer.take(min(most, FILE_MESSAGES), min(octets_left, FILE_OCTETS), wait=self._left is not None)
            if taken is None:
                return
            count = len(taken)
            spool.append(taken.batch(spool.next, self.queue))
            # Only now the broker may forget them.
            taken.acknowledge()
            most -= count
            octets_left -= taken.octets
            if self._left is not None:
                self._left -= count

    def _waits(self, available: int, limit: ReadLimit) -> bool:
        least = self.settings.min_messages_per_trigger
        return (least is not None and self._left is None and not isinstance(limit, ReadAllAvailable)
                and available < least and time.monotonic() - self._triggered < self.settings.max_trigger_delay)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._spool is None or self._consumer is None:
            return None
        waiting = self._consumer.waiting()
        return {**self._offset(self._spool, self._spool.next), "waiting": waiting,
                "lag": waiting + self._spool.next - self._reached}

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        spool = self._open()
        first, stop = self._read_offset(start, spool), self._read_offset(end, spool)
        if first >= stop:
            return []
        parts: list[InputPartition] = []
        files: list[SpoolFile] = []
        begin = at = first
        for file in spool.between(first, stop):
            files.append(file)
            at = min(file.stop, stop)
            if at - begin >= WORTH_A_TASK:
                parts.append(SpoolPartition(tuple(files), begin, at))
                files, begin = [], at
        if files:
            parts.append(SpoolPartition(tuple(files), begin, at))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        reading = self.reading
        schema = arrow_schema(reading.columns)
        left_out = {"map": ("headers_json",), "json": ("headers",), "both": ()}[reading.headers_format]
        expected = partition.first
        for file in partition.files:
            try:
                table = pq.read_table(file.path, partitioning=None)
            except (OSError, pa.ArrowException) as error:
                raise ReadFailed(f"the spool's file {file.path!r} cannot be read: {error}; option spoolDir: expected a "
                                 "directory that every worker sees") from None
            if table.num_rows != file.stop - file.first:
                raise ReadFailed(f"the spool's file {file.path!r} has {table.num_rows} messages instead of "
                                 f"{file.stop - file.first}")
            low = max(partition.first, file.first)
            high = min(partition.stop, file.stop)
            if low != expected:
                raise ReadFailed(f"the spool's file {file.path!r} begins at {low} where {expected} was next")
            expected = high
            chosen = table.slice(low - file.first, high - low)
            columns = [pa.nulls(chosen.num_rows, field.type) if field.name in left_out else
                       chosen.column(field.name).cast(field.type) for field in schema]
            yield from pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches(reading.batch_rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Comes one batch late."""
        spool = self._open()
        spool.remove_before(self._read_offset(end, spool))

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None

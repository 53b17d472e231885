"""Reading slices in tasks: from segment files where they exist, otherwise over AMQP.

Either way, every slice is verified: it begins with its first offset, ends with its last one, and has all messages in
between except those that the manifest lists as erased.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from leveret.segments.columns import Rows, make_batch
from leveret.segments.errors import SegmentError
from leveret.segments.manifest import Segment
from leveret.segments.reader import SegmentReader, open_segment
from leveret.segments.record_batches import DeliveredBatch, joined
from leveret.segments.schema import COLUMNS
from leveret.spark.connection import ControlClient
from leveret.spark.errors import ReadFailed
from leveret.spark.schema import Projection
from leveret.spark.source.fetch import StreamFetch
from leveret.spark.source.file_pins import FilePin
from leveret.spark.source.partitions import Slice
from leveret.spark.source.reading import Reading
from leveret.spark.source.storage_options import storage_options
from leveret.spark.source.topology import describe

logger = logging.getLogger("leveret.spark")


class BatchBuilder:
    """Builds batches for Spark: the requested columns, in order, of the rows that pass the filter.

    Attributes:
        queue: Value of the column `queue`.
        names: Columns to build from messages.
    """

    def __init__(self, reading: Reading, queue: str, partition: int = 0) -> None:
        self.queue = queue
        self.partition = partition
        self._projection = Projection(reading.columns, reading.headers_format)
        self._batch_rows = reading.batch_rows
        pattern = reading.routing_key_filter
        self._matches = None if pattern is None else topic_expression(pattern)
        wanted = set(self._projection.names)
        if self._matches is not None:
            wanted.add("routing_key")
        self.names = [name for name in COLUMNS if name in wanted]

    def batches(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Build batches from messages."""
        batch = self.finish(make_batch(rows, self.names, self.queue, self.partition))
        for start in range(0, batch.num_rows, self._batch_rows):
            yield batch.slice(start, self._batch_rows)

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Finish a batch that has at least these columns."""
        if self._matches is not None:
            batch = batch.filter(pc.match_substring_regex(batch.column("routing_key"), self._matches))
        return self._projection.batch(batch)


class SliceReader:
    """Reads one slice. `position` is the offset of the next message."""

    def __init__(self, reading: Reading, part: Slice, file_pin: FilePin | None = None) -> None:
        self.reading = reading
        self._loss_holder = file_pin.holder if file_pin is not None and file_pin.counts_losses else None
        self.part = part
        self.position = part.first
        self._builder = BatchBuilder(reading, part.topic if reading.by_topic else part.stream, part.partition)
        # Files are verified by their offsets.
        wanted = {*self._builder.names, "offset"}
        self._file_names = [name for name in COLUMNS if name in wanted]
        self._storage = storage_options(reading.storage_options_file)

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        part = self.part
        if self.reading.history != "amqp":
            for segment in part.segments:
                if segment.last < self.position or segment.first >= part.stop:
                    continue
                if segment.first > self.position:
                    yield from self._over_amqp(segment.first)
                try:
                    yield from self._from_file(segment)
                except SegmentError as error:
                    if self.reading.history == "segments":
                        raise ReadFailed(f"{error}; set option history to auto to read these messages over AMQP") from None
                    logger.warning("%s; messages from offset %d are read over AMQP instead", error, self.position)
                    yield from self._over_amqp(min(segment.last + 1, part.stop))
        if self.position < part.stop:
            yield from self._over_amqp(part.stop)
        if self.position != part.stop:
            raise ReadFailed(f"{self._range_text()} was read up to offset {self.position}; expected {part.stop}")

    # Segment files

    def _from_file(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Read the slice's part of this file. Raises SegmentError, after complete batches, if that fails."""
        first, stop = self.position, min(self.part.stop, segment.last + 1)
        with open_segment(segment.path, self._storage, segment) as reader:
            for low, high in self._ranges(reader, first, stop - 1):
                self.position = low
                count = yield from self._from_range(reader, segment, high + 1)
                if low <= segment.first and high >= segment.last and count != segment.count:
                    raise _not_contiguous(segment, low, low, high, count)
        self.position = stop

    def _ranges(self, reader: SegmentReader, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges of offsets, both inclusive, that can have rows which the query needs."""
        conditions = self.reading.conditions
        if not conditions.need_statistics:
            return [(first, last)]
        groups = [group for group in reader.row_groups() if group.last >= first and group.first <= last]
        found = list(conditions.candidates(groups))
        if len(found) == len(groups):
            return [(first, last)]
        return [(max(low, first), min(high, last)) for low, high in found]

    def _from_range(self, reader: SegmentReader, segment: Segment, stop: int) -> Generator[pa.RecordBatch, None, int]:
        """Read the file from the position up to before an offset. Returns the number of rows before the filter."""
        first = self.position
        count = 0
        for batch in reader.read(
            self._file_names, first, stop - 1, self._builder.queue, self.part.partition, self.reading.batch_rows
        ):
            offsets = batch.column("offset")
            low, high = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
            gap = high - low + 1 - len(offsets)
            if (
                low < self.position
                or high >= stop
                or gap < 0
                or ((gap or low > self.position) and not _may_have_gaps(segment))
            ):
                raise _not_contiguous(segment, self.position, low, high, len(offsets))
            rows = self._builder.finish(batch)
            self.position = high + 1
            count += len(offsets)
            if rows.num_rows:
                yield rows
        if self.position < stop and not _may_have_gaps(segment):
            raise _not_contiguous(segment, self.position, self.position, stop - 1, 0)
        return count

    # AMQP

    def _over_amqp(self, stop: int) -> Iterator[pa.RecordBatch]:
        reading, part = self.reading, self.part
        fetch = StreamFetch(
            reading.endpoint,
            part.stream,
            part.id,
            prefetch=reading.prefetch,
            routing_keys=reading.routing_key_filter,
            fail_on_data_loss=reading.fail_on_data_loss,
            loss_holder=self._loss_holder,
            loss_directory=reading.loss_directory,
        )
        for rows in joined(self._checked(fetch.read(self.position, stop)), reading.batch_rows):
            yield from self._builder.batches(rows)
        self.position = stop

    def _checked(self, batches: Iterable[DeliveredBatch]) -> Iterator[DeliveredBatch]:
        """Yield record batches with rows. Raises ReadFailed if messages are missing."""
        for delivered in batches:
            missing = delivered.next - delivered.first - delivered.count
            if missing and self.reading.routing_key_filter is None:
                self._check_erased(delivered, missing)
            self.position = delivered.next
            if delivered.count:
                yield delivered

    def _check_erased(self, delivered: DeliveredBatch, missing: int) -> None:
        """Raise ReadFailed unless the manifest accounts for the missing messages as erased."""
        control = ControlClient(self.reading.endpoint, "leveret-spark-read")
        try:
            segments = describe(control, self.part.stream, delivered.first, delivered.next - 1).segments
        finally:
            control.close()
        erased = sum(segment.last - segment.first + 1 - segment.count for segment in segments)
        if missing > erased:
            raise ReadFailed(
                f"{self._range_text()}: {missing} messages from offset {delivered.first} to "
                f"{delivered.next - 1} are missing, but only {erased} were erased according to the manifest"
            )

    def _range_text(self) -> str:
        part = self.part
        return f"stream {part.stream!r}, offsets {part.first} to {part.stop - 1}"


def _may_have_gaps(segment: Segment) -> bool:
    return segment.count < segment.last - segment.first + 1


def _not_contiguous(segment: Segment, expected: int, low: int, high: int, count: int) -> SegmentError:
    return SegmentError(
        segment.path,
        f"it has {count} messages from offset {low} to {high}, expected offset {expected}: "
        "it does not match its entry in the manifest",
    )


def topic_expression(pattern: str) -> str:
    """Convert a topic pattern to a regular expression: `*` matches one word, `#` any number of words."""
    words = [
        word
        for word, before in zip(pattern.split("."), ["", *pattern.split(".")], strict=False)
        if not word == before == "#"
    ]
    expression = ""
    for number, word in enumerate(words):
        if word == "#":
            expression += r"(\.[^.]*)*" if number else r"([^.]*(\.[^.]*)*)?"
            continue
        piece = r"[^.]*" if word == "*" else re.escape(word)
        if number and not (number == 1 and words[0] == "#"):
            expression += r"\."
        elif number:
            # After a `#`, which may match zero words.
            expression = r"([^.]*\.)*"
        expression += piece
    return f"^{expression}$"

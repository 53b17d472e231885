"""A running flow: from a capture through decoding and a transformation to its outputs, as one streaming query.

All outputs share one query, which passes each batch to them (`foreachBatch`). So even a queue, whose messages are consumed,
can feed several outputs; there is one checkpoint and one position; and each output is written under (query, batch number),
so that a repeated batch is recognized. A message that cannot be decoded goes to the quarantine within the same batch; if
the transformation works on the stream as a whole, a second query does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline import capture as capturing
from leveret.spark.pipeline.decoding.decode import ERROR, decoded, decoded_rows, rejected_rows
from leveret.spark.pipeline.direct.flow import Direct, direct_of
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, TableOutput
from leveret.spark.pipeline.output.exchanges import ExchangeWriter, publishable
from leveret.spark.pipeline.output.existing_tables import check_directory, check_table
from leveret.spark.pipeline.output.tables import Ready, TableWriter, partition_columns, select_output
from leveret.spark.pipeline.session import register
from leveret.spark.pipeline.transform import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds to wait for the count of rejected messages after a write; without it they are searched for.
OBSERVATION_TIMEOUT = 5.0


@dataclass
class Flow:
    """What a flow does.

    Attributes:
        name: Names of pipeline and flow; used at the broker and for the query.
        mark: Sets `decode_error` of more messages, and may add columns.
        transform: Function of a DataFrame; None leaves messages unchanged.
        stream: Whether it is applied to the stream as a whole.
        after: Called with the session after each batch.
    """

    name: str
    capture: Capture
    decode: Decode = field(default_factory=Decode)
    mark: Function | None = None
    transform: Function | None = None
    stream: bool = False
    output_mode: str = "append"
    tables: list[TableOutput] = field(default_factory=list)
    exchanges: list[ExchangeOutput] = field(default_factory=list)
    trigger: float = 5.0
    after: Callable[[SparkSession], None] | None = None

    @property
    def can_reject(self) -> bool:
        """Whether messages can be rejected."""
        return self.decode.format != "raw" or self.mark is not None

    @property
    def has_quarantine(self) -> bool:
        return self.can_reject and self.decode.on_error == "quarantine" and self.decode.quarantine is not None

    def decode_and_mark(self, messages: DataFrame) -> DataFrame:
        """Decode the messages, adding `decode_error`."""
        both = decoded(messages, self.decode)
        return both if self.mark is None else self.mark(both)

    def accepted(self, both: DataFrame) -> DataFrame:
        """Return the accepted messages; with on_error "fail" a rejected one fails the query before anything is written."""
        fails = self.decode.on_error == "fail" and self.can_reject
        return decoded_rows(both, f"{self.name}: on_error is \"fail\", and a message was rejected" if fails else None)

    def check(self, messages: DataFrame) -> None:
        """Plan the flow over a DataFrame, which may be empty. Raises PipelineError if something does not fit."""
        rows = self.accepted(self.decode_and_mark(messages))
        if self.transform is not None:
            rows = self.transform(rows)
        for table in self.tables:
            partition_columns(table, select_output(rows, table).columns)
        for exchange in self.exchanges:
            publishable(rows, exchange)

    def check_existing_tables(self, messages: DataFrame) -> None:
        """Check the flow's rows against existing tables. Raises PipelineError if they do not fit."""
        spark = messages.sparkSession
        if self.has_quarantine:
            assert self.decode.quarantine is not None
            check_directory(spark, self.decode.quarantine, "quarantine")
        if self.tables:
            rows = self.accepted(self.decode_and_mark(messages))
            if self.transform is not None:
                rows = self.transform(rows)
            for table in self.tables:
                check_table(spark, table, select_output(rows, table).schema)


def start_flow(spark: SparkSession, flow: Flow, broker: Broker, checkpoint: str,
               once: bool = False, source: DataFrame | None = None) -> list[StreamingQuery]:
    """Start the queries of a flow: one, and a second one for the quarantine if the stream is transformed as a whole.

    Args:
        spark: The session.
        flow: The flow.
        broker: The broker.
        checkpoint: Directory in which each query has its own checkpoint.
        once: Process what is available now, then stop.
        source: Streaming DataFrame to use instead of the capture.

    Raises:
        PipelineError: Something does not fit.
    """
    register(spark)
    if flow.can_reject and flow.decode.on_error == "quarantine" and not flow.has_quarantine:
        raise PipelineError(f"{flow.name}: decode.quarantine is not set, but decode.on_error is \"quarantine\"; set it to "
                            "a table's directory, or set on_error to \"fail\" or \"drop\"")
    if source is None:
        if flow.transform is None:  # otherwise the schema is only known in `run`, or from the first batch
            flow.check_existing_tables(capturing.no_messages(spark, flow.capture.options.get("columns")))
        capturing.declare(flow.capture, broker, flow.name)
        direct = direct_of(spark, flow, broker, checkpoint)
        if direct is not None:
            batches = _BatchWriter(flow, broker, direct.columns, None, direct)
            return [_start(direct.read_stream(spark), flow, batches, checkpoint, once, "append")]
        source = capturing.read_stream(spark, flow.capture, broker, flow.name)
    messages = source.columns
    both = flow.decode_and_mark(source)
    if not flow.stream:
        return [_start(both, flow, _BatchWriter(flow, broker, messages, flow.transform), checkpoint, once, "append")]
    rows = flow.accepted(both)
    if flow.transform is not None:
        rows = flow.transform(rows)
    queries = [_start(rows, flow, _BatchWriter(flow, broker, None, None), checkpoint, once, flow.output_mode)]
    if flow.has_quarantine:
        name = f"{flow.name}.quarantine"
        again = capturing.read_stream(spark, flow.capture, broker, name)
        only = Flow(name, flow.capture, flow.decode, flow.mark, trigger=flow.trigger)
        queries.append(_start(only.decode_and_mark(again), only, _BatchWriter(only, broker, messages, None),
                              f"{checkpoint}-quarantine", once, "append"))
    return queries


def _start(df: DataFrame, flow: Flow, batches: _BatchWriter, checkpoint: str, once: bool, mode: str) -> StreamingQuery:
    writer = df.writeStream.queryName(flow.name).option("checkpointLocation", checkpoint).outputMode(mode)
    writer = writer.foreachBatch(batches)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{flow.trigger * 1000:.0f} milliseconds").start()


class _BatchWriter:
    """The function for `foreachBatch`."""

    def __init__(self, flow: Flow, broker: Broker, messages: list[str] | None, transform: Function | None,
                 direct: Direct | None = None) -> None:
        self._flow = flow
        self._broker = broker
        # Columns of the captured messages if batches need to be filtered; None if they are accepted rows already.
        self._messages = messages
        self._transform = transform
        self._direct = direct
        self._writers: list[tuple[Any, Any]] | None = None
        self._quarantine: TableWriter | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        writers = self._open(batch.sparkSession)
        if self._direct is None:
            self._write(batch, number, writers)
        else:
            (writer, shape), = writers
            ready, undecided = self._direct.collect_files(batch)
            if undecided is None:
                writer.write_ready(batch.sparkSession, number, ready)
            else:
                self._write(self._flow.decode_and_mark(undecided), number, [(_WithReadyFiles(writer, ready), shape)])
            self._direct.clear(batch.sparkSession)
        if self._flow.after is not None:
            self._flow.after(batch.sparkSession)

    def _write(self, batch: DataFrame, number: int, writers: list[tuple[Any, Any]]) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        flow = self._flow
        watched = None
        rows = batch
        if self._quarantine is not None:
            # Counting while writing means that a batch without rejected messages, the usual one, is read once.
            watched = Observation()
            rows = batch.observe(watched, F.count(ERROR).alias("bad"))
        if self._messages is not None:
            rows = flow.accepted(rows)
        if self._transform is not None:
            rows = self._transform(rows)
        # Cached, so that several outputs read from the broker once.
        several = len(writers) > 1
        kept = rows.persist() if several else rows
        read = False
        try:
            for writer, shape in writers:
                read |= writer.write(shape(kept), number)
        finally:
            if several:
                kept.unpersist()
        if self._quarantine is not None and (not read or _rejected_count(watched) != 0):
            assert self._messages is not None
            self._quarantine.write(rejected_rows(batch, flow.decode, self._messages), number)

    def _open(self, spark: SparkSession) -> list[tuple[Any, Any]]:
        if self._writers is None:
            query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
            self._writers = []
            for index, table in enumerate(self._flow.tables):
                self._writers.append((TableWriter(table, f"{query}-t{index}"), partial(select_output, output=table)))
            for index, exchange in enumerate(self._flow.exchanges):
                self._writers.append((ExchangeWriter(exchange, self._broker, f"{query}-x{index}"), _unchanged))
            if self._messages is not None and self._flow.has_quarantine:
                assert self._flow.decode.quarantine is not None
                place = TableOutput(path=self._flow.decode.quarantine)
                self._quarantine = TableWriter(place, f"{query}-quarantine")
        return self._writers


class _WithReadyFiles:
    """Writes batches together with files that are ready."""

    def __init__(self, writer: TableWriter, ready: list[Ready]) -> None:
        self._writer = writer
        self._ready = ready

    def write(self, rows: DataFrame, number: int) -> bool:
        return self._writer.write(rows, number, self._ready)


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def _rejected_count(observation: Any) -> int | None:
    """Return the number of rejected messages; None if it is unknown because the output needed no row."""
    counted = observation._jo.future()
    deadline = time.monotonic() + OBSERVATION_TIMEOUT
    # It arrives on another thread, shortly after the write.
    while not counted.isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)
    return int(observation.get["bad"])

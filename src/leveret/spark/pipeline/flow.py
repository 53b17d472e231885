"""A running flow: from a capture through decoding and a transformation to its outputs, as one streaming query.

All outputs share one query, which passes each batch to them (`foreachBatch`). So even a queue, whose messages are consumed,
can feed several outputs; there is one checkpoint and one position; and each output is written under (query, batch number),
so that a repeated batch is recognized. A message that cannot be decoded goes to the quarantine within the same batch; if
the transformation works on the stream as a whole, a second query does that.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline import capture as capturing
from leveret.spark.pipeline.decoding.body_format import ERROR
from leveret.spark.pipeline.decoding.decode import rejected_rows
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.direct.flow import Direct, direct_of
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, TableOutput
from leveret.spark.pipeline.output.exchanges import ExchangeWriter
from leveret.spark.pipeline.output.tables import Ready, TableWriter, select_output
from leveret.spark.pipeline.session import register
from leveret.spark.pipeline.transform import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds to wait for the count of rejected messages after a write. Without the count, a query searches for them.
OBSERVATION_TIMEOUT = 5.0


def start_flow(
    spark: SparkSession, flow: Flow, broker: Broker, checkpoint: str, once: bool = False, source: DataFrame | None = None
) -> list[StreamingQuery]:
    """Start the queries of a flow: one, and a second one for the quarantine if the stream is transformed as a whole.

    Args:
        spark: The session.
        flow: The flow.
        broker: The broker.
        checkpoint: Directory in which each query has its own checkpoint.
        once: Process what is available now, then stop.
        source: Streaming DataFrame to use instead of the capture.

    Raises:
        PipelineError: The flow is invalid.
    """
    register(spark)
    if flow.can_reject and flow.decode.on_error == "quarantine" and not flow.has_quarantine:
        raise PipelineError(
            f'{flow.name}: decode.quarantine is not set, but decode.on_error is "quarantine"; set it to '
            'a table\'s directory, or set on_error to "fail" or "drop"'
        )
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
        queries.append(
            _start(
                only.decode_and_mark(again),
                only,
                _BatchWriter(only, broker, messages, None),
                f"{checkpoint}-quarantine",
                once,
                "append",
            )
        )
    return queries


def _start(df: DataFrame, flow: Flow, batches: _BatchWriter, checkpoint: str, once: bool, mode: str) -> StreamingQuery:
    writer = df.writeStream.queryName(flow.name).option("checkpointLocation", checkpoint).outputMode(mode)
    writer = writer.foreachBatch(batches)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{flow.trigger * 1000:.0f} milliseconds").start()


class _BatchWriter:
    """The function for `foreachBatch`."""

    def __init__(
        self,
        flow: Flow,
        broker: Broker,
        messages: list[str] | None,
        transform: Function | None,
        direct: Direct | None = None,
    ) -> None:
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
            ((writer, shape),) = writers
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
    # The count arrives on another thread, shortly after the write.
    while not counted.isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)
    return int(observation.get["bad"])

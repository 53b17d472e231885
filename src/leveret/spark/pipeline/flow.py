"""One flow at work: from a capture through decoding and a transformation to its outputs, as one streaming query.

All outputs hang on one query, which hands each batch to them (`foreachBatch`): so a queue whose messages are taken can
feed several of them, there is one checkpoint and one position, and every output is written under (query, batch number)
and takes a batch that comes again for the one that it has. A message that cannot be decoded goes to the quarantine
within the same batch; where the transformation sees the stream as a whole, a second query does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline import capture as capturing
from leveret.spark.pipeline.decode import ERROR, bad_rows, decoded, good_rows
from leveret.spark.pipeline.direct import Direct, direct_of
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.exchanges import ExchangeWriter, publishable
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, TableOutput
from leveret.spark.pipeline.places import check_place, check_table
from leveret.spark.pipeline.session import register
from leveret.spark.pipeline.tables import Ready, TableWriter, partition_columns, shaped
from leveret.spark.pipeline.transform import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds for the count of bad messages to come after a write; without it they are looked for once more.
OBSERVED_WITHIN = 5.0


@dataclass
class Flow:
    """What one flow does.

    name       of pipeline and flow: at the broker, and of the query
    mark       sets `decode_error` of further messages, and may add columns
    transform  of a DataFrame; None leaves the messages as they are
    stream     whether it is applied to the stream as a whole
    after      is called behind each batch, with the session
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
    def judges(self) -> bool:
        """Whether there may be messages that are bad."""
        return self.decode.format != "raw" or self.mark is not None

    @property
    def quarantines(self) -> bool:
        return self.judges and self.decode.on_error == "quarantine" and self.decode.quarantine is not None

    def judged(self, messages: DataFrame) -> DataFrame:
        """The messages, decoded, with `decode_error`."""
        both = decoded(messages, self.decode)
        return both if self.mark is None else self.mark(both)

    def good(self, both: DataFrame) -> DataFrame:
        """Of judged messages those that go on; with on_error "fail" the others end the query before anything is seen."""
        fails = self.decode.on_error == "fail" and self.judges
        return good_rows(both, f"{self.name}: on_error is \"fail\", and a message is bad" if fails else None)

    def check(self, messages: DataFrame) -> None:
        """Plan everything over a DataFrame that may be empty. `PipelineError` where something does not fit."""
        rows = self.good(self.judged(messages))
        if self.transform is not None:
            rows = self.transform(rows)
        for table in self.tables:
            partition_columns(table, shaped(rows, table).columns)
        for exchange in self.exchanges:
            publishable(rows, exchange)

    def check_places(self, messages: DataFrame) -> None:
        """See what is where tables are to be. `PipelineError` where the rows do not fit; messages as of `check`."""
        spark = messages.sparkSession
        if self.quarantines:
            assert self.decode.quarantine is not None
            check_place(spark, self.decode.quarantine, "quarantine")
        if self.tables:
            rows = self.good(self.judged(messages))
            if self.transform is not None:
                rows = self.transform(rows)
            for table in self.tables:
                check_table(spark, table, shaped(rows, table).schema)


def start_flow(spark: SparkSession, flow: Flow, broker: Broker, checkpoint: str,
               once: bool = False, source: DataFrame | None = None) -> list[StreamingQuery]:
    """Start the queries of a flow: one, and a second one for a quarantine beside a transformation of the stream.

    checkpoint  directory; each query has its own below it
    once        take what is there now, and end
    source      messages to take instead of the captured ones, streaming
    Raises `PipelineError` for what does not fit.
    """
    register(spark)
    if flow.judges and flow.decode.on_error == "quarantine" and not flow.quarantines:
        raise PipelineError(f"{flow.name}: decode.quarantine is not set, and decode.on_error is \"quarantine\"; expected a "
                            "table's directory for messages that are bad, or on_error \"fail\" or \"drop\"")
    if source is None:
        if flow.transform is None:  # what a function makes of messages is known before `run` only, or by the first batch
            flow.check_places(capturing.no_messages(spark, flow.capture.options.get("columns")))
        capturing.declare(flow.capture, broker, flow.name)
        direct = direct_of(spark, flow, broker, checkpoint)
        if direct is not None:
            batches = _Batches(flow, broker, direct.columns, None, direct)
            return [_start(direct.read_stream(spark), flow, batches, checkpoint, once, "append")]
        source = capturing.read_stream(spark, flow.capture, broker, flow.name)
    messages = source.columns
    both = flow.judged(source)
    if not flow.stream:
        return [_start(both, flow, _Batches(flow, broker, messages, flow.transform), checkpoint, once, "append")]
    rows = flow.good(both)
    if flow.transform is not None:
        rows = flow.transform(rows)
    queries = [_start(rows, flow, _Batches(flow, broker, None, None), checkpoint, once, flow.output_mode)]
    if flow.quarantines:
        name = f"{flow.name}.quarantine"
        again = capturing.read_stream(spark, flow.capture, broker, name)
        only = Flow(name, flow.capture, flow.decode, flow.mark, trigger=flow.trigger)
        queries.append(_start(only.judged(again), only, _Batches(only, broker, messages, None),
                              f"{checkpoint}-quarantine", once, "append"))
    return queries


def _start(df: DataFrame, flow: Flow, batches: _Batches, checkpoint: str, once: bool, mode: str) -> StreamingQuery:
    writer = df.writeStream.queryName(flow.name).option("checkpointLocation", checkpoint).outputMode(mode)
    writer = writer.foreachBatch(batches)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{flow.trigger * 1000:.0f} milliseconds").start()


class _Batches:
    """What `foreachBatch` calls."""

    def __init__(self, flow: Flow, broker: Broker, messages: list[str] | None, transform: Function | None,
                 direct: Direct | None = None) -> None:
        self._flow = flow
        self._broker = broker
        # Columns of the captured messages where batches are judged messages; None where they are good ones already.
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
            ready, undecided = self._direct.written(batch)
            if undecided is None:
                writer.write_ready(batch.sparkSession, number, ready)
            else:
                self._write(self._flow.judged(undecided), number, [(_With(writer, ready), shape)])
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
            # So that a batch without bad messages, the usual one, is read once.
            watched = Observation()
            rows = batch.observe(watched, F.count(ERROR).alias("bad"))
        if self._messages is not None:
            rows = flow.good(rows)
        if self._transform is not None:
            rows = self._transform(rows)
        # Several outputs read the broker once, too.
        several = len(writers) > 1
        kept = rows.persist() if several else rows
        read = False
        try:
            for writer, shape in writers:
                read |= writer.write(shape(kept), number)
        finally:
            if several:
                kept.unpersist()
        if self._quarantine is not None and (not read or _bad(watched) != 0):
            assert self._messages is not None
            self._quarantine.write(bad_rows(batch, flow.decode, self._messages), number)

    def _open(self, spark: SparkSession) -> list[tuple[Any, Any]]:
        if self._writers is None:
            query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
            self._writers = []
            for index, table in enumerate(self._flow.tables):
                self._writers.append((TableWriter(table, f"{query}-t{index}"), partial(shaped, output=table)))
            for index, exchange in enumerate(self._flow.exchanges):
                self._writers.append((ExchangeWriter(exchange, self._broker, f"{query}-x{index}"), _as_they_are))
            if self._messages is not None and self._flow.quarantines:
                assert self._flow.decode.quarantine is not None
                place = TableOutput(path=self._flow.decode.quarantine)
                self._quarantine = TableWriter(place, f"{query}-quarantine")
        return self._writers


class _With:
    """Writes files that are ready with what there is besides."""

    def __init__(self, writer: TableWriter, ready: list[Ready]) -> None:
        self._writer = writer
        self._ready = ready

    def write(self, rows: DataFrame, number: int) -> bool:
        return self._writer.write(rows, number, self._ready)


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def _bad(observation: Any) -> int | None:
    """How many bad messages were counted; None where nothing was, which an output that needs no row brings about."""
    counted = observation._jo.future()
    deadline = time.monotonic() + OBSERVED_WITHIN
    # It comes on a thread of its own, just behind the end of the write.
    while not counted.isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)
    return int(observation.get["bad"])

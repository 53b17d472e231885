"""Enrichment: adds columns of a table to the JSON bodies of messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from leveret.spark.pipeline.checks import Problem, check_decode
from leveret.spark.pipeline.decoding.body_format import ERROR
from leveret.spark.pipeline.decoding.registry import RAW
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, FlowSection, StaticTable
from leveret.spark.pipeline.transform import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MATCHED = "__matched"


class EnrichFlow(FlowSection, frozen=True, kw_only=True, tag="enrich"):
    decode: Decode
    table: StaticTable
    # Fields of the decoded body = columns of the table.
    on: dict[str, str]
    to: ExchangeOutput
    # Columns of the table to add; by default all that are not joined on.
    add: list[str] = []
    # Action for messages without a row in the table; "keep" publishes them without the columns.
    unmatched: Literal["keep", "quarantine", "drop"] = "keep"
    trigger: float = 1.0

    def check(self) -> Iterator[Problem]:
        yield from check_decode(self.decode)
        if self.decode.format == RAW:
            yield ("decode", "format"), 'is "raw": a raw body has no field to join on'
        if not self.on:
            yield ("on",), 'is empty; expected { FIELD_OF_THE_BODY = "COLUMN_OF_THE_TABLE" }'
        if self.unmatched == "quarantine" and self.decode.quarantine is None:
            yield ("unmatched",), 'is "quarantine", but decode.quarantine is not set'

    def build(self, name: str) -> Flow:
        """Build a flow that reads the table again for each batch."""

        def mark(both: DataFrame) -> DataFrame:
            from pyspark.sql import functions as F

            found = _join(both, self)
            if self.unmatched != "quarantine":
                return found
            reason = "no row of the table with " + ", ".join(f"{column} = {field}" for field, column in self.on.items())
            return found.withColumn(ERROR, F.coalesce(ERROR, F.when(F.col(_MATCHED).isNull(), F.lit(reason))))

        return Flow(
            name,
            self.capture,
            self.decode,
            mark,
            lambda rows: _with_merged_body(rows, self),
            exchanges=[self.to],
            trigger=self.trigger,
        )


def enrich(
    spark: SparkSession,
    broker: Broker,
    capture: Capture,
    decode: Decode,
    table: StaticTable,
    on: dict[str, str],
    to: ExchangeOutput,
    *,
    checkpoint: str,
    add: list[str] | None = None,
    unmatched: str = "keep",
    name: str = "enrich",
    once: bool = False,
    trigger: float = 1.0,
) -> list[StreamingQuery]:
    """Start publishing every captured message with columns of a table in its body, exactly once.

    Args:
        spark: The session.
        broker: The broker.
        capture: Source of the messages.
        decode: Decoding of bodies.
        table: The table.
        on: Fields of the body to columns of the table. If several rows match a message, the first one is used.
        to: Target of the messages.
        checkpoint: Directory of the query's state.
        add: Columns to add; by default all that are not joined on.
        unmatched: "keep", "quarantine" or "drop" messages without a row in the table.
        name: Name of the query.
        once: Process what is available now, then stop.
        trigger: Seconds between batches.
    """
    if unmatched not in ("keep", "quarantine", "drop"):
        raise PipelineError(f"enrich: unmatched is {unmatched!r}; expected keep, quarantine or drop")
    flow = EnrichFlow(
        capture=capture,
        decode=decode,
        table=table,
        on=on,
        to=to,
        add=add or [],
        unmatched=unmatched,  # type: ignore[arg-type]
        trigger=trigger,
    )
    return start_flow(spark, flow.build(name), broker, checkpoint, once)


def _join(rows: DataFrame, flow: EnrichFlow) -> DataFrame:
    from pyspark.sql import functions as F

    table = read_table(rows.sparkSession, flow.table, "table")
    add = _columns_to_add(table, flow)
    # A message must stay a single message.
    table = table.dropDuplicates(list(flow.on.values()))
    right = table.select(
        *(F.col(column).alias(f"__on_{index}") for index, column in enumerate(flow.on.values())),
        F.struct(*(F.col(column) for column in add)).alias("__added"),
        F.lit(True).alias(_MATCHED),
    )
    conditions = [F.col(f"{flow.decode.column}.{field}") == F.col(f"__on_{index}") for index, field in enumerate(flow.on)]
    together = conditions[0]
    for condition in conditions[1:]:
        together = together & condition
    return rows.join(F.broadcast(right), together, "left")


def _columns_to_add(table: DataFrame, flow: EnrichFlow) -> list[str]:
    missing = [column for column in (*flow.on.values(), *flow.add) if column not in table.columns]
    if missing:
        raise PipelineError(f"table {flow.table.path} has no column {missing[0]!r}; it has {', '.join(table.columns)}")
    add = flow.add or [column for column in table.columns if column not in flow.on.values()]
    if not add:
        raise PipelineError(f"table {flow.table.path} has no columns to add besides those that are joined on")
    return add


def _with_merged_body(rows: DataFrame, flow: EnrichFlow) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if flow.unmatched == "drop":
        rows = rows.where(f"{_MATCHED} IS NOT NULL")
    data = rows.schema[flow.decode.column].dataType
    added = rows.schema["__added"].dataType
    assert isinstance(data, StructType) and isinstance(added, StructType)
    own = [field for field in data.names if field not in added.names]
    fields = [F.col(f"{flow.decode.column}.`{field}`").alias(field) for field in own]
    fields += [F.col(f"__added.`{field}`").alias(field) for field in added.names]
    return rows.withColumn("body", F.to_json(F.struct(*fields)).cast("binary")).withColumn(
        "content_type", F.lit("application/json")
    )

"""Definition of a flow: its capture, decoding, transformation and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.spark.pipeline.decoding.decode import decoded, decoded_rows
from leveret.spark.pipeline.decoding.registry import RAW
from leveret.spark.pipeline.model import Capture, Decode, ExchangeOutput, TableOutput
from leveret.spark.pipeline.output.exchanges import publishable
from leveret.spark.pipeline.output.existing_tables import check_directory, check_table
from leveret.spark.pipeline.output.tables import partition_columns, select_output
from leveret.spark.pipeline.transform import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Flow:
    """The definition of a flow.

    Attributes:
        name: Names of pipeline and flow; used at the broker and for the query.
        mark: Sets `decode_error` of more messages, and may add columns.
        transform: Function of a DataFrame; None leaves messages unchanged.
        stream: Whether the transformation applies to the stream as a whole.
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
        return self.decode.format != RAW or self.mark is not None

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
        return decoded_rows(both, f'{self.name}: on_error is "fail", and a message was rejected' if fails else None)

    def check(self, messages: DataFrame) -> None:
        """Plan the flow over a DataFrame, which may be empty. Raises PipelineError if that fails."""
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

"""A flow that does not fit an existing table fails before it reads or writes messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leveret import sync
from leveret.spark.pipeline import Broker, Capture, Decode, PipelineError, TableOutput, archive
from leveret.spark.pipeline.load import pipeline_of
from leveret.spark.pipeline.output.existing_tables import check_table
from leveret.spark.pipeline.run import flows_of, plan
from tests.spark.pipeline.support import orders, publish, run_to_end
from tests.spark.pipeline.test_flows import SCHEMA, plain_files
from tests.spark.support import declare_stream
from tests.spark.support import run as run_query
from tests.support.broker import LeveretProcess


def flow(path: Path, broker: LeveretProcess, name: str, schema: str | None = None, **table: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": "archive",
        "capture": {"stream": name},
        "table": {"path": str(path / "table"), **table},
    }
    if schema is not None:
        found["decode"] = {"format": "json", "schema": schema, "quarantine": str(path / "bad")}
    return {"name": name, "directory": str(path), "broker": {"url": broker.url()}, "flows": {"f": found}}


@pytest.fixture
def table(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path) -> Path:
    """Return an archive that is partitioned by day."""
    declare_stream(connection, name)
    publish(connection, "", orders(20), name)
    run_to_end(
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            TableOutput(path=str(tmp_path / "table")),
            checkpoint=str(tmp_path / "f"),
            name=name,
            once=True,
            decode=Decode(format="json", schema=SCHEMA, quarantine=str(tmp_path / "bad")),
        )
    )
    return tmp_path / "table"


@pytest.mark.parametrize(
    ("schema", "partition", "expected"),
    [
        ("id BIGINT, amount STRING", ["day(append_time)"], r"data\.amount has type double, but the rows have string"),
        ("id INT", ["day(append_time)"], r"data\.id has type bigint, but the rows have int"),
        (SCHEMA, [], "partitioned by day, but the key partition has nothing"),
        (SCHEMA, ["hour(append_time)"], "partitioned by day, but the key partition has hour"),
    ],
    ids=["text", "int", "without", "hours"],
)
def test_rows_that_do_not_fit_a_table(
    spark: SparkSession,
    broker: LeveretProcess,
    name: str,
    table: Path,
    tmp_path: Path,
    schema: str,
    partition: list[str],
    expected: str,
) -> None:
    whole = pipeline_of(flow(tmp_path, broker, name, schema, partition=partition))
    with pytest.raises(PipelineError, match=rf"flows\.f: table .*{expected}"):
        plan(spark, flows_of(whole), True)
    with pytest.raises(PipelineError, match=expected):
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            checkpoint=str(tmp_path / "f"),
            name=name,
            once=True,
            table=TableOutput(path=str(table), partition=partition),
            decode=Decode(format="json", schema=schema, on_error="drop"),
        )
    assert len(plain_files(table)) == 20


@pytest.mark.parametrize(
    "schema", [pytest.param("country STRUCT<a: INT>", marks=pytest.mark.slow), None], ids=["others", "raw"]
)
def test_columns_can_be_added_and_removed(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    table: Path,
    tmp_path: Path,
    schema: str | None,
) -> None:
    publish(connection, "", orders(20, 20), name)
    decode = Decode() if schema is None else Decode(format="json", schema=schema, quarantine=str(tmp_path / "bad"))
    run_to_end(
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            TableOutput(path=str(table)),
            checkpoint=str(tmp_path / "f"),
            name=name,
            once=True,
            decode=decode,
        )
    )
    assert spark.read.option("mergeSchema", "true").parquet(str(table)).select("offset", "data").distinct().count() == 40


def test_files_that_spark_would_ignore(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, "", orders(3), name)
    run_query(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest")
    expected = r"out: was written by a query of Spark's own \(_spark_metadata\)"
    with pytest.raises(PipelineError, match=f"table .*{expected}"):
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            TableOutput(path=str(tmp_path / "out")),
            checkpoint=str(tmp_path / "c"),
            name=name,
            once=True,
        )
    with pytest.raises(PipelineError, match=f"quarantine .*{expected}"):
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            TableOutput(path=str(tmp_path / "table")),
            checkpoint=str(tmp_path / "c"),
            name=name,
            once=True,
            decode=Decode(format="json", schema=SCHEMA, quarantine=str(tmp_path / "out")),
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match=r"table .*file: is a file; expected a directory"):
        archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            TableOutput(path=str(tmp_path / "file")),
            checkpoint=str(tmp_path / "c"),
            name=name,
            once=True,
        )


def test_nested_types(spark: SparkSession, tmp_path: Path) -> None:
    made = spark.range(1).selectExpr("array(named_struct('x', 1)) AS a", "map('k', 1) AS m", "1 AS n")
    made.write.parquet(str(tmp_path / "t"))
    table = TableOutput(path=str(tmp_path / "t"))

    def check(rows: str) -> None:
        check_table(spark, table, spark.createDataFrame([], rows).schema)

    check("a ARRAY<STRUCT<X: INT, y: STRING>>, m MAP<STRING, INT>, new STRING")
    for rows, expected in (
        ("a ARRAY<STRUCT<x: STRING>>", r"a\[\]\.x"),
        ("m MAP<STRING, STRING>", r"m\.value"),
        ("m MAP<INT, INT>", r"m\.key"),
        ("N STRING", "N has"),
        ("a INT", "a has"),
    ):
        with pytest.raises(PipelineError, match=expected):
            check(rows)

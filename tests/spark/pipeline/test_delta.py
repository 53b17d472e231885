"""Delta tables as outputs and sources: each batch is one commit, and readers see only what is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from leveret import sync
from leveret.spark.pipeline import Broker, Capture, ExchangeOutput, PipelineError, TableOutput, archive, replay
from leveret.spark.pipeline.model import StaticTable
from leveret.spark.pipeline.output import delta
from leveret.spark.pipeline.output.existing_tables import check_table
from leveret.spark.pipeline.output.tables import TableWriter
from leveret.spark.pipeline.transform import read_table
from tests.spark.pipeline.support import orders, publish, run_to_end
from tests.spark.support import declare_stream
from tests.support.broker import LeveretProcess


@pytest.fixture
def output(tmp_path: Path) -> TableOutput:
    return TableOutput(path=str(tmp_path / "table"), format="delta", partition=["day(at)"])


def rows_of(spark: SparkSession, number: int = 0) -> DataFrame:
    return spark.range(100 * number, 100 * number + 20).select(
        "id", F.timestamp_seconds(F.col("id") % 100 * 10_000).alias("at")
    )


def ids(spark: SparkSession, output: TableOutput) -> list[int]:
    table = read_table(spark, StaticTable(path=output.path, format="delta"), "table")
    return sorted(row.id for row in table.select("id").collect())


def test_each_batch_is_committed_once(spark: SparkSession, output: TableOutput) -> None:
    for number in (0, 1, 1, 0):
        TableWriter(output, "app").write(rows_of(spark, number), number)
    table = DeltaTable(output.path)
    assert table.version() == 2  # the creation is a commit of its own
    assert table.transaction_version("app") == 1
    assert ids(spark, output) == [*range(20), *range(100, 120)]


def test_writers_share_a_table(spark: SparkSession, output: TableOutput) -> None:
    TableWriter(output, "first").write(rows_of(spark, 0), 5)
    TableWriter(output, "second").write(rows_of(spark, 1), 0)
    assert ids(spark, output) == [*range(20), *range(100, 120)]


def test_files_that_are_moved_but_not_committed_are_committed_by_the_repeated_batch(
    spark: SparkSession, output: TableOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    TableWriter(output, "app").write(rows_of(spark, 0), 0)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_args, **_options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            TableWriter(output, "app").write(rows_of(spark, 1), 1)
    assert ids(spark, output) == [*range(20)]
    # The plan decides: the batch is not computed again.
    assert not TableWriter(output, "app").write(rows_of(spark, 2), 1)
    assert ids(spark, output) == [*range(20), *range(100, 120)]


def test_partitions_are_columns_and_files_have_statistics(spark: SparkSession, output: TableOutput) -> None:
    TableWriter(output, "app").write(rows_of(spark), 0)
    table = DeltaTable(output.path)
    assert table.metadata().partition_columns == ["day"]
    logged = Path(output.path, "_delta_log", f"{1:020}.json").read_text().splitlines()
    added = [entry["add"] for entry in map(json.loads, logged) if "add" in entry]
    assert {entry["partitionValues"]["day"] for entry in added} == {"1970-01-01", "1970-01-02", "1970-01-03"}
    found = [json.loads(entry["stats"]) for entry in added]
    assert sum(one["numRecords"] for one in found) == 20
    assert min(one["minValues"]["id"] for one in found) == 0
    assert max(one["maxValues"]["id"] for one in found) == 19
    read = delta.read_table(spark, output.path)
    assert read.where("day = '1970-01-02'").count() == sum(
        one["numRecords"]
        for one, entry in zip(found, added, strict=True)
        if entry["partitionValues"]["day"] == "1970-01-02"
    )


def test_partition_values_with_special_characters_and_null(spark: SparkSession, tmp_path: Path) -> None:
    output = TableOutput(path=str(tmp_path / "a table%"), format="delta", partition=["kind"])
    values = ["a/b", "a: b%", "ü", None]
    rows = spark.createDataFrame([(number, kind) for number, kind in enumerate(values)], "id bigint, kind string")
    TableWriter(output, "app").write(rows, 0)
    found = delta.read_table(spark, output.path).collect()
    assert sorted((row.id, row.kind) for row in found) == list(enumerate(values))
    arrow = DeltaTable(output.path).to_pyarrow_table()
    assert sorted(zip(*(arrow.column(name).to_pylist() for name in ("id", "kind")), strict=True)) == list(enumerate(values))


def test_new_columns_are_added_and_missing_ones_are_null(spark: SparkSession, output: TableOutput) -> None:
    rows = spark.range(5).select(F.struct("id").alias("data"), F.timestamp_seconds(F.col("id") * 10_000).alias("at"))
    more = rows.withColumn("data", F.struct("data.id", F.lit("x").alias("name"))).withColumn("new", F.lit(1))
    versions = []
    for number, batch in enumerate((rows, more, rows, more)):
        check_table(spark, output, batch.schema)
        TableWriter(output, "app").write(batch, number)
        versions.append(DeltaTable(output.path).version())
    assert versions == [1, 3, 4, 5]  # the second batch adds columns
    found = delta.read_table(spark, output.path).collect()
    assert sorted((row.data.id, row.data.name or "", row.new or 0) for row in found) == sorted(
        [(number, "", 0) for number in range(5)] * 2 + [(number, "x", 1) for number in range(5)] * 2
    )


def test_other_types_and_partitions_are_refused(spark: SparkSession, output: TableOutput, tmp_path: Path) -> None:
    rows = rows_of(spark)
    TableWriter(output, "app").write(rows, 0)
    with pytest.raises(PipelineError, match="its column id has type bigint, but the rows have int"):
        check_table(spark, output, rows.withColumn("id", F.lit(1)).schema)
    with pytest.raises(PipelineError, match=r"its column id has type bigint, but the rows have decimal\(38,0\)"):
        check_table(spark, output, rows.withColumn("id", F.col("id").cast("decimal(38,0)")).schema)
    other = TableOutput(path=output.path, format="delta", partition=["hour(at)"])
    for refused in (
        lambda: check_table(spark, other, rows.schema),
        lambda: TableWriter(other, "app").write(rows, 1),
    ):
        with pytest.raises(PipelineError, match="it is partitioned by day, but the key partition has hour"):
            refused()
    with pytest.raises(PipelineError, match="is not a Delta table; expected a directory with _delta_log"):
        delta.read_table(spark, str(tmp_path))


def test_table_may_be_compacted_and_vacuumed(spark: SparkSession, output: TableOutput) -> None:
    for number in (0, 1):
        TableWriter(output, "app").write(rows_of(spark, number), number)
    before = set(DeltaTable(output.path).file_uris())
    DeltaTable(output.path).optimize.compact()
    after = set(DeltaTable(output.path).file_uris())
    assert len(after) < len(before)
    removed = DeltaTable(output.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(removed) == len(before)
    # The plans remain, by which a repeated batch is recognized.
    assert Path(output.path, "_leveret", "app", f"{1:012}.json").exists()
    assert ids(spark, output) == [*range(20), *range(100, 120)]
    TableWriter(output, "app").write(rows_of(spark, 1), 1)
    TableWriter(output, "app").write(rows_of(spark, 2), 2)
    assert ids(spark, output) == [*range(20), *range(100, 120), *range(200, 220)]


@pytest.mark.slow
def test_compacted_archive_is_replayed_once(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    where = Broker(url=broker.url())
    for start in (0, 20):
        publish(connection, "", orders(20, start), name)
        output = TableOutput(path=str(tmp_path / "table"), format="delta")
        state = str(tmp_path / "state")
        run_to_end(archive(spark, where, Capture(stream=name), output, checkpoint=state, name=name, once=True))
    DeltaTable(tmp_path / "table").optimize.compact()
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-again")
        target = ExchangeOutput(exchange="", routing_key=f"{name}-again")
        assert replay(spark, where, str(tmp_path / "table"), target, name=name) == 40
        found = [
            json.loads(message.body)["id"] for message in iter(lambda: channel.get(f"{name}-again", no_ack=True), None)
        ]
    assert found == list(range(40))

"""Flows from streams of a real broker to tables, exactly once."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from leveret import sync
from leveret.spark.pipeline import Broker, Capture, Decode, Flow, PipelineError, TableOutput, archive, compact, start_flow
from leveret.spark.pipeline.load import pipeline_of
from leveret.spark.pipeline.output.existing_tables import check_table
from leveret.spark.pipeline.output.tables import TableWriter
from leveret.spark.pipeline.run import flows_of
from leveret.spark.pipeline.state import read_state
from leveret.spark.pipeline.supervise import Supervisor, failure_reason
from tests.spark.pipeline.support import orders, publish, run_to_end
from tests.spark.support import TIMEOUT
from tests.support.broker import LeveretProcess

SCHEMA = "id BIGINT NOT NULL, customer STRING, amount DOUBLE"


def plain_files(path: Path) -> list[dict[str, Any]]:
    """Return the rows that a reader without Spark sees."""
    rows = []
    for directory, inner, files in os.walk(path):
        inner[:] = [name for name in inner if not name.startswith("_")]
        for file in sorted(files):
            if file.endswith(".parquet"):
                rows += pq.ParquetFile(Path(directory) / file).read().to_pylist()
    return rows


def test_an_exchange_is_archived_and_invalid_json_is_quarantined(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_exchange(name, "topic", durable=True)
    decode = Decode(format="json", schema=SCHEMA, quarantine=str(tmp_path / "bad"))

    def run() -> None:
        run_to_end(
            archive(
                spark,
                Broker(url=broker.url()),
                Capture(exchange=name, keys=["order.#"]),
                TableOutput(path=str(tmp_path / "table")),
                checkpoint=str(tmp_path / "checkpoint"),
                decode=decode,
                name=name,
                once=True,
            )
        )

    run()
    bad = [b"{broken", b'{"id": "text"}', b"[1]", b"", b"\xff\xfe", b'{"customer": "c"}']
    publish(connection, name, orders(300), "order.new", content_type="application/json", message_id="m", headers={"n": 1})
    publish(connection, name, bad, "order.odd")
    publish(connection, name, [b"not bound"], "invoice.new")
    run()
    publish(connection, name, orders(100, 300), "order.new")
    run()

    rows = plain_files(tmp_path / "table")
    assert sorted(row["data"]["id"] for row in rows) == list(range(400))
    assert all(json.loads(row["body"])["id"] == row["data"]["id"] for row in rows)
    assert {row["data"]["amount"] for row in rows if row["data"]["id"] == 7} == {1.75}
    first = next(row for row in rows if row["data"]["id"] == 0)
    assert (first["exchange"], first["routing_key"], first["message_id"], dict(first["headers"])) == (
        name,
        "order.new",
        "m",
        {"n": "1"},
    )
    quarantined = plain_files(tmp_path / "bad")
    assert sorted(row["body"] for row in quarantined) == sorted(bad)
    reasons = {row["body"]: row["decode_error"] for row in quarantined}
    assert reasons[b"{broken"].startswith("not JSON: Expecting property name")
    assert reasons[b'{"id": "text"}'] == "JSON, but its fields do not have the types of the schema"
    assert reasons[b"[1]"] == "JSON of type list; expected an object"
    assert reasons[b'{"customer": "c"}'] == "the field id is missing"
    assert "data" not in quarantined[0]
    day = {directory.name for directory in (tmp_path / "table").iterdir() if directory.name.startswith("day=")}
    assert day == {f"day={row['append_time']:%Y-%m-%d}" for row in rows}


def test_a_repeated_batch_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableOutput(path=str(tmp_path / "table"), partition=["kind"])
    rows = spark.range(100).select("id", (F.col("id") % 3).alias("kind"))
    TableWriter(table, "app").write(rows, 0)

    # Fails in the middle of the renames, like a kill.
    from leveret.spark.pipeline.output.files import Files

    moved = 0
    move = Files.move

    def failing(self: Files, source: str, target: str) -> bool:
        nonlocal moved
        if "_leveret" in source and target.endswith(".parquet"):
            moved += 1
            if moved == 2:
                raise KeyboardInterrupt
        return move(self, source, target)

    monkeypatch.setattr(Files, "move", failing)
    with pytest.raises(KeyboardInterrupt):
        TableWriter(table, "app").write(rows.withColumn("id", F.col("id") + 100), 1)
    monkeypatch.undo()
    seen = [row["id"] for row in plain_files(tmp_path / "table")]
    assert set(range(100)) < set(seen) < set(range(200))

    # A batch with a plan is not computed again, which would produce other rows.
    TableWriter(table, "app").write(rows.withColumn("id", F.col("id") + 1000), 1)
    TableWriter(table, "app").write(rows, 0)
    assert sorted(row["id"] for row in plain_files(tmp_path / "table")) == list(range(200))
    TableWriter(table, "another").write(rows.withColumn("id", F.col("id") + 200), 1)
    assert sorted(row["id"] for row in plain_files(tmp_path / "table")) == list(range(300))


def test_a_query_that_lost_its_last_commit_writes_nothing_twice(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    publish(connection, "", orders(200), name)
    tables = [TableOutput(path=str(tmp_path / "one")), TableOutput(path=str(tmp_path / "two"), where="amount >= 25")]
    flow = Flow(
        name,
        Capture(stream=name, options={"maxMessagesPerTrigger": 60}),
        Decode(format="json", schema=SCHEMA, on_error="drop"),
        transform=lambda rows: rows.select("data.*"),
        tables=tables,
    )
    run_to_end(start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_to_end(start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True))
    assert sorted(row["id"] for row in plain_files(tmp_path / "one")) == list(range(200))
    assert sorted(row["id"] for row in plain_files(tmp_path / "two")) == list(range(100, 200))


def test_windows_over_the_stream_and_their_quarantine(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    publish(connection, "", [json.dumps({"at": 10 * number, "n": number}).encode() for number in range(12)], name)
    publish(connection, "", [b"nonsense"], name)

    def windows(rows: DataFrame) -> DataFrame:
        timed = rows.select(F.timestamp_seconds("data.at").alias("at"), "data.n").withWatermark("at", "10 seconds")
        return (
            timed.groupBy(F.window("at", "30 seconds"))
            .agg(F.sum("n").alias("total"))
            .select(F.col("window.start").alias("start"), "total")
        )

    decode = Decode(format="json", schema="at BIGINT, n BIGINT", quarantine=str(tmp_path / "bad"))
    flow = Flow(
        name,
        Capture(stream=name),
        decode,
        transform=windows,
        stream=True,
        tables=[TableOutput(path=str(tmp_path / "windows"), partition=["month(start)"])],
    )
    run_to_end(start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True))
    # The watermark is at 100 s, so the window that starts at 90 s is still open.
    assert sorted(row["total"] for row in plain_files(tmp_path / "windows")) == [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8]
    assert [row["body"] for row in plain_files(tmp_path / "bad")] == [b"nonsense"]


def test_a_body_that_fails_the_flow_is_named(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    publish(connection, "", [*orders(5), b"nonsense"], name)
    flow = Flow(
        name,
        Capture(stream=name),
        Decode(format="json", schema=SCHEMA, on_error="fail"),
        tables=[TableOutput(path=str(tmp_path / "table"))],
    )
    (query,) = start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True)
    expected = f'on_error is "fail", and a message was rejected: queue {name}, offset 5, not a JSON object'
    with pytest.raises(Exception, match=expected):
        query.awaitTermination(TIMEOUT)
    assert plain_files(tmp_path / "table") == []


def test_a_quarantine_is_required(spark: SparkSession, tmp_path: Path) -> None:
    for decode in (Decode(format="json", schema=SCHEMA), Decode(format="avro", schema="{}")):
        with pytest.raises(PipelineError, match=r"f: decode\.quarantine is not set"):
            archive(
                spark,
                Broker(),
                Capture(stream="s"),
                TableOutput(path=str(tmp_path / "table")),
                decode=decode,
                checkpoint=str(tmp_path / "checkpoint"),
                name="f",
                once=True,
            )


def test_a_queue_feeds_several_tables_and_is_emptied(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    publish(connection, "", [*orders(60), b"nonsense"], name)
    pipeline = pipeline_of(
        {
            "name": name,
            "directory": str(tmp_path / "state"),
            "broker": {"url": broker.url()},
            "flows": {
                "taken": {
                    "capture": {"queue": name},
                    "decode": {"format": "json", "schema": SCHEMA, "quarantine": str(tmp_path / "bad")},
                    "transform": {"sql": "SELECT append_time, data.id, data.amount FROM messages"},
                    "tables": [{"path": str(tmp_path / "one")}, {"path": str(tmp_path / "two"), "where": "id < 10"}],
                }
            },
        }
    )
    lines: list[str] = []
    assert Supervisor(spark, pipeline, flows_of(pipeline), True, lines.append).run()
    assert lines[-1].startswith("taken: finished, batch 0, ")
    assert sorted(row["id"] for row in plain_files(tmp_path / "one")) == list(range(60))
    assert sorted(row["id"] for row in plain_files(tmp_path / "two")) == list(range(10))
    assert [row["body"] for row in plain_files(tmp_path / "bad")] == [b"nonsense"]
    with connection.channel() as channel:
        described = json.loads(
            channel.request(json.dumps({"version": 1, "queue": name}).encode(), "queue.describe", "leveret.control").body
        )
    assert (described["messages"], described["leased"]) == (0, 0)
    state = read_state(pipeline.directory)
    assert state is not None and state["state"] == "finished" and state["flows"]["taken"]["state"] == "finished"


@pytest.mark.parametrize(
    "capture",
    [{"stream": "nothing"}, {"queue": "nothing"}, {"stream": "nothing", "direct": True}],
    ids=["stream", "queue", "archive"],
)
def test_a_run_with_once_does_not_wait_for_a_missing_stream(
    spark: SparkSession, broker: LeveretProcess, tmp_path: Path, capture: dict[str, Any]
) -> None:
    flow: dict[str, Any] = {"kind": "archive", "table": {"path": str(tmp_path / "table"), "writer": "spark"}}
    if capture.pop("direct", False):
        del flow["table"]["writer"]
    pipeline = pipeline_of(
        {
            "name": "once",
            "directory": str(tmp_path / "state"),
            "broker": {"url": broker.url()},
            "flows": {"f": {**flow, "capture": capture}},
        }
    )
    lines: list[str] = []
    assert not Supervisor(spark, pipeline, flows_of(pipeline), True, lines.append).run()
    assert any(line.startswith("f: failed: ") and "no queue 'nothing'" in line for line in lines), lines
    assert not any("restarting" in line for line in lines)


def test_a_query_that_fails_between_two_looks_at_it_has_failed(
    spark: SparkSession, broker: LeveretProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_active(query: StreamingQuery) -> bool:
        """Return whether the query runs, and wait until it does not."""
        found = bool(query._jsq.isActive())
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
        return found

    monkeypatch.setattr(StreamingQuery, "isActive", property(is_active))
    pipeline = pipeline_of(
        {
            "name": "once",
            "directory": str(tmp_path / "state"),
            "broker": {"url": broker.url()},
            "flows": {"f": {"capture": {"queue": "nothing"}, "tables": [{"path": str(tmp_path / "table")}]}},
        }
    )
    lines: list[str] = []
    assert not Supervisor(spark, pipeline, flows_of(pipeline), True, lines.append).run()
    assert any(line.startswith("f: failed: ") for line in lines), lines


def test_a_run_with_once_does_not_repeat_a_refused_login(
    spark: SparkSession, broker: LeveretProcess, tmp_path: Path
) -> None:
    pipeline = pipeline_of(
        {
            "name": "once",
            "directory": str(tmp_path / "state"),
            "broker": {"url": broker.url().replace("guest:guest@", "guest:wrong@")},
            "flows": {"f": {"capture": {"stream": "s"}, "tables": [{"path": str(tmp_path / "table")}]}},
        }
    )
    lines: list[str] = []
    assert not Supervisor(spark, pipeline, flows_of(pipeline), True, lines.append).run()
    assert any(line.startswith("f: failed: ") and "refused user 'guest'" in line for line in lines), lines
    assert not any("restarting" in line for line in lines)


def test_the_reason_of_a_failed_call_of_the_jvm_is_its_exception() -> None:
    trace = "An error occurred while calling o516.load.\n: java.lang.IllegalStateException: no table 't'\n\tat a.B.c"
    assert failure_reason(Exception(trace)) == "java.lang.IllegalStateException: no table 't'"


def test_an_iceberg_table_gets_one_commit_per_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = TableOutput(path=str(tmp_path / "table"), format="iceberg", partition=["day(at)"])
    rows = spark.range(20).select("id", F.timestamp_seconds(F.col("id") * 10_000).alias("at"))
    for number in (0, 1, 1, 0):
        TableWriter(table, "app").write(rows.withColumn("id", F.col("id") + 100 * number), number)
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{tmp_path}/table/_leveret/catalog.sqlite")
    found = catalog.load_table("leveret.table")
    assert sorted(found.scan().to_arrow().column("id").to_pylist()) == [*range(20), *range(100, 120)]
    assert sum(snapshot.summary is not None for snapshot in found.metadata.snapshots) == 2
    assert len(list(found.scan(row_filter="at < '1970-01-02T00:00:00+00:00'").plan_files())) == 2


def test_new_columns_are_added_to_an_iceberg_table(spark: SparkSession, tmp_path: Path) -> None:
    table = TableOutput(path=str(tmp_path / "table"), format="iceberg", partition=["day(at)"])
    rows = spark.range(5).select(F.struct("id").alias("data"), F.timestamp_seconds(F.col("id") * 10_000).alias("at"))
    more = rows.withColumn("data", F.struct("data.id", F.lit("x").alias("name"))).withColumn("new", F.lit(1))
    for number, batch in enumerate((rows, more, rows)):
        check_table(spark, table, batch.schema)
        TableWriter(table, "app").write(batch, number)
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{tmp_path}/table/_leveret/catalog.sqlite")
    found = catalog.load_table("leveret.table").scan().to_arrow().to_pylist()
    assert sorted((row["data"]["id"], row["data"]["name"] or "", row["new"] or 0) for row in found) == sorted(
        [(number, "", 0) for number in range(5)] * 2 + [(number, "x", 1) for number in range(5)]
    )
    with pytest.raises(PipelineError, match="its column data has type"):
        check_table(spark, table, rows.withColumn("data", F.lit(1)).schema)


def test_types_of_an_iceberg_table(spark: SparkSession, tmp_path: Path) -> None:
    table = TableOutput(path=str(tmp_path / "table"), format="iceberg", partition=["day(at)"])
    rows = spark.range(3).selectExpr("CAST(id AS INT) AS id", "timestamp_seconds(id) AS at", "1 AS odd")
    # The newest file lacks a column of the table, and has wider integers.
    wider = rows.drop("odd").withColumn("id", F.col("id").cast("bigint") + (1 << 40))
    for number, batch in enumerate((rows, wider)):
        check_table(spark, table, batch.schema)
        TableWriter(table, "app").write(batch, number)
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{tmp_path}/table/_leveret/catalog.sqlite")
    ids = catalog.load_table("leveret.table").scan().to_arrow().column("id").to_pylist()
    assert sorted(ids) == [*range(3), *range(1 << 40, (1 << 40) + 3)]
    for changed, expected in (
        (rows.drop("odd"), "its column id has type bigint, but the rows have int"),
        (wider.withColumn("odd", F.lit("x")), "its column odd has type int, but the rows have string"),
        (wider.withColumn("odd", F.lit(1.5)), "its column odd has type int, but the rows have double"),
    ):
        with pytest.raises(PipelineError, match=f"{expected}; use the same types, wider ones"):
            check_table(spark, table, changed.schema)


def test_partitions_of_an_iceberg_table_can_be_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = TableOutput(path=str(tmp_path / "table"), format="iceberg", partition=["day(at)"])
    hours = structs.replace(days, partition=["hour(at)"])
    rows = spark.range(20).select("id", F.timestamp_seconds(F.col("id") * 10_000).alias("at"))

    def batch(number: int) -> DataFrame:
        return rows.withColumn("id", F.col("id") + 100 * number)

    TableWriter(days, "app").write(batch(0), 0)
    # A batch is planned for days, and not yet committed when the partitions change.
    with monkeypatch.context() as patch:
        patch.setattr(Table, "add_files", lambda *_args, **_options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            TableWriter(days, "app").write(batch(1), 1)
    check_table(spark, hours, rows.schema)
    for number in (1, 2):
        TableWriter(hours, "app").write(batch(number), number)
    whole = structs.replace(days, partition=[])
    TableWriter(whole, "app").write(batch(3), 3)
    TableWriter(days, "app").write(batch(4), 4)
    catalog = load_catalog("leveret", type="sql", uri=f"sqlite:///{tmp_path}/table/_leveret/catalog.sqlite")
    table = catalog.load_table("leveret.table")
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [
        100 * number + row for number in range(5) for row in range(20)
    ]
    scan = table.scan(row_filter="at < '1970-01-01T12:00:00+00:00'")
    assert sorted(scan.to_arrow().column("id").to_pylist()) == [
        100 * number + row for number in range(5) for row in range(5)
    ]
    # One file by day each in three batches, those of the hours, and one of the whole batch.
    specs = [task.file.spec_id for task in scan.plan_files()]
    assert len({*specs}) == 3 and len(specs) == 3 * 1 + 5 + 1
    # Files of the other partitionings are left.
    compact(days, min_age=0)
    assert table.refresh().scan().to_arrow().num_rows == 100
    plain = structs.replace(days, partition=["id"])
    with pytest.raises(PipelineError, match="partition 'id' is not supported for an Iceberg table"):
        check_table(spark, plain, rows.schema)


def test_a_compacted_table_is_the_same_for_spark_and_for_later_batches(spark: SparkSession, tmp_path: Path) -> None:
    table = TableOutput(path=str(tmp_path / "table"), partition=["day(at)"])
    rows = spark.range(20).selectExpr(
        "id",
        "timestamp_seconds(id * 10000) AS at",
        "named_struct('a', array(id, null), 'm', map('k', CAST(id AS DECIMAL(20, 3)))) AS nested",
        "array(named_struct('x', DATE '2026-11-22', 'y', CAST(CAST(id AS STRING) AS BINARY))) AS list",
    )
    for number in range(3):
        TableWriter(table, "app").write(rows, number)
    before = spark.read.parquet(table.path)
    expected = sorted(map(repr, before.collect()))
    done = compact(table, min_age=0)
    assert (done.partitions, done.added, done.busy) == (3, 3, 0) and done.removed >= 9
    after = spark.read.parquet(table.path)
    assert (after.schema, sorted(map(repr, after.collect()))) == (before.schema, expected)
    # A repeated batch does not miss its files, and a new one is added.
    assert not TableWriter(table, "app").write(rows, 2)
    check_table(spark, table, rows.schema)
    TableWriter(table, "app").write(rows, 3)
    assert spark.read.parquet(table.path).count() == 80

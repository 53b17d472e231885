"""Direct flows, whose tasks write the table's files, produce the same rows as Spark, each once."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from leveret import sync
from leveret.client import amqp10
from leveret.spark.finish import finish
from leveret.spark.pipeline import Broker, Capture, Decode, Flow, PipelineError, TableOutput, archive, start_flow
from leveret.spark.pipeline import flow as flows
from leveret.spark.pipeline.direct.flow import direct_of
from leveret.spark.pipeline.direct.task import DirectTask
from leveret.spark.pipeline.output.files import Files
from tests.spark.pipeline.support import orders, publish, run_to_end
from tests.spark.pipeline.test_flows import SCHEMA, plain_files
from tests.spark.source.test_history import seal
from tests.spark.source.test_types import publish_raw
from tests.spark.support import declare_stream, read
from tests.support.broker import LeveretProcess
from tests.support.requests import ask

BAD = [b"{broken", b'{"id": "text"}', b"", b"\xff", b'{"customer": "c"}']
# Left to Spark, which accepts them.
ODD = [b"{'id': 1000, 'customer': 'single quotes'}", b'{"id": 1001, "customer": 7}', b'{"id": 1002, "id": 1003}']


def files_below(path: Path) -> list[Path]:
    return [Path(base) / name for base, _, names in os.walk(path) for name in names if name.endswith(".parquet")]


@pytest.mark.slow
def test_the_rows_equal_those_that_spark_writes(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish_raw(broker, name)
    publish(connection, "", [*orders(200), *BAD, *ODD], name, headers={"n": 1})
    seal(broker, connection, name, 209)
    with sync.connect(broker.url(), protocol="1.0") as other, other.sender(name) as sender:
        sender.send(
            b'{"id": 2000}',
            subject="s",
            annotations={"x-list": [1, "a"]},
            application_properties={"a": 1.5, "b": amqp10.UByte(5)},
        )
    tables = {}
    for writer in ("auto", "spark"):
        place = tmp_path / writer
        (query,) = archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name, consumer=writer),
            TableOutput(path=str(place / "table"), writer=writer, partition=["day(append_time)", "hour(append_time)"]),
            checkpoint=str(place / "checkpoint"),
            name=writer,
            once=True,
            decode=Decode(format="json", schema=SCHEMA, quarantine=str(place / "bad")),
        )
        run_to_end([query])
        if writer == "auto":  # Spark reads a batch with rejected rows twice
            assert sum(progress["numInputRows"] for progress in query.recentProgress) == 200 + len(BAD) + len(ODD) + 2
        tables[writer] = spark.read.parquet(str(place / "table"))
    ours, theirs = tables["auto"], tables["spark"]
    assert ours.schema == theirs.schema
    assert ours.columns[-2:] == ["day", "hour"]
    assert ours.orderBy("offset").collect() == theirs.orderBy("offset").collect()
    assert ours.count() == 200 + len(ODD) + 1
    assert sorted(row["body"] for row in plain_files(tmp_path / "auto" / "bad")) == sorted([*BAD, b"\0\xffab"])
    # They equal the rows of the source, and not all were left to Spark.
    messages = read(spark, broker.url(), stream=name)
    assert (
        ours.select(messages.columns).orderBy("offset").collect()
        == messages.where(F.col("offset").isin([row.offset for row in ours.select("offset").collect()]))
        .orderBy("offset")
        .collect()
    )
    creators = {pq.ParquetFile(path).metadata.created_by.split()[0] for path in files_below(tmp_path / "auto" / "table")}
    assert creators == {"parquet-cpp-arrow", "parquet-mr"}


def test_raw_bodies_without_partitions(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declare_stream(connection, name)
    publish_raw(broker, name)
    publish(connection, "", [b"\xff", b"{", b""], name)
    queries = archive(
        spark,
        Broker(url=broker.url()),
        Capture(stream=name),
        TableOutput(path=str(tmp_path / "table"), partition=[]),
        checkpoint=str(tmp_path / "checkpoint"),
        name=name,
        once=True,
    )
    run_to_end(queries)
    (path,) = (tmp_path / "table").glob("*.parquet")
    assert pq.ParquetFile(path).metadata.created_by.startswith("parquet-cpp-arrow")
    found = spark.read.parquet(str(tmp_path / "table")).orderBy("offset").collect()
    assert found == read(spark, broker.url(), stream=name).orderBy("offset").collect()
    assert [bytes(row.body) for row in found] == [b"\0\xffab", b"\xff", b"{", b""]
    queries[0].explain(extended=True)
    plan = capsys.readouterr().out
    assert "amqp_direct" in plan and "guest" not in plan
    # The position is committed at the broker.
    assert [finish(query) for query in queries] == [1]
    with connection.channel() as channel:
        assert ask(channel, "stream.lag", stream=name, consumer=name)["lag"] == 0


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param("before the plan", marks=pytest.mark.slow),
        "in the middle of the moves",
        pytest.param("behind the moves", marks=pytest.mark.slow),
    ],
)
def test_a_query_that_dies_within_a_batch_resumes(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
) -> None:
    declare_stream(connection, name)
    publish(connection, "", [*orders(20), BAD[0], ODD[0]], name)
    flow = Flow(
        name,
        Capture(stream=name, options={"minPartitions": "2"}),
        Decode(format="json", schema=SCHEMA, quarantine=str(tmp_path / "bad")),
        tables=[TableOutput(path=str(tmp_path / "table"))],
    )
    # If the table's files are known already, there is no count to wait for.
    monkeypatch.setattr(flows, "OBSERVATION_TIMEOUT", 3600)
    moved = 0
    move, write_text, listing = Files.move, Files.write_text, Files.listing

    def failing_move(self: Files, source: str, target: str) -> bool:
        nonlocal moved
        moved += target.startswith("day=")
        if ends == "in the middle of the moves" and moved == 2 and target.startswith("day="):
            raise InterruptedError
        return move(self, source, target)

    def failing_text(self: Files, path: str, text: str) -> None:
        if ends == "before the plan":
            raise InterruptedError
        write_text(self, path, text)

    def failing_listing(self: Files, path: str) -> list[str]:
        if ends == "behind the moves" and path.startswith("_leveret"):
            raise InterruptedError
        return listing(self, path)

    def start() -> list[Any]:
        return start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True)

    monkeypatch.setattr(Files, "move", failing_move)
    monkeypatch.setattr(Files, "write_text", failing_text)
    monkeypatch.setattr(Files, "listing", failing_listing)
    with pytest.raises(Exception, match="InterruptedError"):
        run_to_end(start())
    for method in (move, write_text, listing):
        monkeypatch.setattr(Files, method.__name__, method)
    (tmp_path / "table").mkdir(exist_ok=True)
    run_to_end(start())
    assert sorted(row["data"]["id"] for row in plain_files(tmp_path / "table")) == [*range(20), 1000]
    assert [row["body"] for row in plain_files(tmp_path / "bad")] == [BAD[0]]

    if ends != "behind the moves":
        return
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_to_end(start())
    assert sorted(row["data"]["id"] for row in plain_files(tmp_path / "table")) == [*range(20), 1000]


def test_files_of_failed_tasks_are_removed(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, "", orders(3), name)
    flow = Flow(name, Capture(stream=name), tables=[TableOutput(path=str(tmp_path / "table"))])
    direct = direct_of(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"))
    assert direct is not None
    left = tmp_path / "table" / direct.directory / "left.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    run_to_end(start_flow(spark, flow, Broker(url=broker.url()), str(tmp_path / "checkpoint"), once=True))
    assert not left.parent.exists()
    assert len(plain_files(tmp_path / "table")) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "directory",
    [
        pytest.param("a b#c%20d\u00e4\u65e5", id="letters"),
        pytest.param("[1]{a,b}*?\\c", id="patterns"),
    ],
)
def test_a_table_in_a_directory_of_any_name(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path, directory: str
) -> None:
    declare_stream(connection, name)
    publish(connection, "", [*orders(20), BAD[0], ODD[0]], name)
    table = tmp_path / directory / "table"
    for _ in range(2):
        run_to_end(
            archive(
                spark,
                Broker(url=broker.url()),
                Capture(stream=name),
                TableOutput(path=str(table)),
                checkpoint=str(tmp_path / "checkpoint"),
                name=name,
                once=True,
                decode=Decode(format="json", schema=SCHEMA, quarantine=str(tmp_path / directory / "bad")),
            )
        )
        publish(connection, "", [*orders(20, 20), BAD[0], ODD[0]], name)
    assert sorted(row["data"]["id"] for row in plain_files(table)) == sorted([*range(40), 1000, 1000])
    assert len(plain_files(tmp_path / directory / "bad")) == 2


@pytest.mark.slow
def test_the_decoded_column_may_have_the_name_of_a_partition(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, "", orders(20), name)
    for writer in ("auto", "spark"):
        run_to_end(
            archive(
                spark,
                Broker(url=broker.url()),
                Capture(stream=name, consumer=writer),
                TableOutput(path=str(tmp_path / writer), writer=writer),
                checkpoint=str(tmp_path / f"{writer}-checkpoint"),
                name=writer,
                once=True,
                decode=Decode(format="json", schema=SCHEMA, column="Day", on_error="drop"),
            )
        )
        assert [path.name.partition("=")[0] for path in (tmp_path / writer).glob("*=*")] == ["append_time_day"]
        assert spark.read.parquet(str(tmp_path / writer)).where("Day.id >= 0").count() == 20


def test_a_file_that_is_missing_on_the_driver_is_named(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare_stream(connection, name)
    publish(connection, "", orders(3), name)
    monkeypatch.setattr(Files, "move", lambda self, source, target: False)
    with pytest.raises(Exception, match=r'which a task has written, does not exist; .* writer = "spark"'):
        run_to_end(
            archive(
                spark,
                Broker(url=broker.url()),
                Capture(stream=name),
                TableOutput(path=str(tmp_path / "table")),
                checkpoint=str(tmp_path / "checkpoint"),
                name=name,
                once=True,
            )
        )


def test_spark_writes_what_tasks_cannot(spark: SparkSession, tmp_path: Path) -> None:
    broker, capture = Broker(), Capture(stream="s")
    json_ = Decode(format="json", schema="id BIGINT", on_error="drop")

    def is_direct(**fields: Any) -> bool:
        table = fields.pop("table", {})
        tables = [TableOutput(**{"path": str(tmp_path / "t"), **table})]
        flow = Flow("f", **{"capture": capture, "tables": tables, **fields})
        return direct_of(spark, flow, broker, "checkpoint") is not None

    assert is_direct() and is_direct(decode=json_) and is_direct(table={"partition": ["month(append_time)"]})
    assert not is_direct(capture=Capture(queue="q"))
    assert not is_direct(transform=lambda rows: rows) and not is_direct(mark=lambda rows: rows)
    assert not is_direct(decode=Decode(format="json", schema="price DECIMAL(9,2)", on_error="drop"))
    for table in (
        {"writer": "spark"},
        {"format": "iceberg"},
        {"where": "offset > 1"},
        {"columns": ["body"]},
        {"partition": ["queue"]},
        {"partition": ["day(timestamp)"]},
    ):
        assert not is_direct(table=table), table
    for column, schema in (("Body", "id INT"), ("data", "id INT, ID INT"), ("data", "a STRUCT<id: INT, ID: INT>")):
        assert not is_direct(decode=Decode(format="json", schema=schema, column=column, on_error="drop")), schema
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        for zone in ("GMT+01:00", "+01:00", "ACT"):  # names of Java's
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert not is_direct(), zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    two = [TableOutput(path=str(tmp_path / name)) for name in "ab"]
    assert is_direct(table={"path": str(tmp_path / "t{1}")})
    assert not is_direct(tables=two) and not is_direct(tables=[])
    with pytest.raises(PipelineError, match="not a list of columns"):
        is_direct(decode=Decode(format="json", schema="id BIGGEST", on_error="drop"))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/St_Johns"])
def test_rows_are_in_the_directories_that_spark_would_choose(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    start = datetime(2026, 10, 24, 17, tzinfo=UTC)  # summer time ends on the 25th, and the month a week later
    times = [start + timedelta(minutes=20 * number) for number in range(800)]
    batches = [
        pa.RecordBatch.from_pydict(
            {
                "append_time": pa.array(times[at : at + 100], pa.timestamp("us", "UTC")),
                "body": pa.array([b"%d" % number for number in range(at, at + 100)]),
            }
        )
        for at in range(0, 800, 100)
    ]
    partitions = [("month", "month"), ("day", "day"), ("hour", "hour")]
    task = DirectTask(str(tmp_path), partitions=partitions, timezone=zone)
    rows = pa.Table.from_batches(task.rows(batches)).to_pylist()
    assert len(rows) == 800
    found = sorted(
        (row["place"], int(body))
        for row in rows
        if row["file"] is not None
        for body in pq.ParquetFile(tmp_path / row["file"]).read(["body"]).column(0).to_pylist()
    )
    rows = spark.createDataFrame([(number, time.timestamp()) for number, time in enumerate(times)], "n INT, at DOUBLE")
    formats = {"month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        at = F.timestamp_seconds("at")
        expected = rows.select("n", *(F.date_format(at, text) for text in formats.values())).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert found == sorted((f"month={month}/day={day}/hour={hour}", number) for number, month, day, hour in expected)


def test_buffers_of_large_bodies_are_bounded(tmp_path: Path) -> None:
    body = json.dumps({"id": 1, "note": "x" * 40_000}).encode()
    batches = [pa.RecordBatch.from_pydict({"body": pa.array([body] * 100)}) for _ in range(30)]
    schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
    rows = pa.Table.from_batches(DirectTask(str(tmp_path), "data", schema).rows(batches)).to_pylist()
    (file,) = [row["file"] for row in rows if row["file"] is not None]
    written = pq.ParquetFile(tmp_path / file)
    groups = [written.metadata.row_group(number).num_rows for number in range(written.num_row_groups)]
    assert sum(groups) == 3000 and max(groups) <= 900
    assert written.read(["data"]).column(0).to_pylist() == [{"id": 1}] * 3000

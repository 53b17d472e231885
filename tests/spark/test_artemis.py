"""Artemis, a broker of AMQP 1.0, as source and sink: at least once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.artemis import ArtemisProcess
from leveret.spark.errors import OptionError
from leveret.spark.spool.reader import SpoolReader
from tests.spark.sinks import batch_of, settings_of, write
from tests.spark.support import run, written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@pytest.fixture
def options(artemis: ArtemisProcess) -> dict[str, str]:
    return {"url": artemis.url(), "protocol": "1.0"}


def read_all(reader: SpoolReader) -> Iterator[pa.RecordBatch]:
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        for part in reader.partitions(start, end):
            yield from reader.read(part)
        start = end


def test_rows_are_published_with_dispositions_and_read_through_a_spool(
    options: dict[str, str], name: str, tmp_path: Path
) -> None:
    count = 2000
    sent = [b"%d" % number for number in range(count)]
    result = write(
        options["url"],
        batch_of(body=sent, message_id=[f"m{number}" for number in range(count)], headers_json=['{"x":7}'] * count),
        protocol="1.0",
        routingKey=name,
        maxInFlight=100,
    )
    assert (result.guarantee, result.counts.published) == ("at-least-once", count)
    settings: Any = settings_of(**options, queue=name, mode="spool", spoolDir=tmp_path)
    reader = SpoolReader(settings, name)
    rows = [row for batch in read_all(reader) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == sent
    assert {(row["queue"], row["headers_json"], row["durable"], row["protocol"]) for row in rows} == {
        (name, '{"x":7}', True, "1.0")
    }
    assert rows[7]["message_id"] == "m7"
    # All were accepted, so that Artemis removed them.
    reader.stop()
    again = SpoolReader(settings_of(**options, queue=name, mode="spool", spoolDir=tmp_path / "again"), name)
    assert not list(read_all(again))
    again.stop()


def test_messages_that_were_not_accepted_return(options: dict[str, str], name: str, tmp_path: Path) -> None:
    write(options["url"], batch_of(body=[b"1", b"2", b"3"]), protocol="1.0", routingKey=name)
    killed = SpoolReader(settings_of(**options, queue=name, mode="spool", spoolDir=tmp_path / "killed"), name)
    taken = killed._open_consumer().take(3, 1 << 20, wait=True)
    assert taken is not None and len(taken)
    killed.stop()
    again = SpoolReader(settings_of(**options, queue=name, mode="spool", spoolDir=tmp_path / "again"), name)
    rows = [row for batch in read_all(again) for row in batch.to_pylist()]
    assert sorted(row["body"] for row in rows) == [b"1", b"2", b"3"]
    again.stop()


def test_a_query_moves_a_queue(spark: SparkSession, options: dict[str, str], name: str, tmp_path: Path) -> None:
    rows = spark.range(300).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("amqp").mode("append").options(**options, routingKey=name).save()
    given = {key: value for key, value in options.items() if key != "url"}
    run(spark, options["url"], tmp_path, queue=name, mode="spool", spoolDir=str(tmp_path / "spool"), **given)
    assert sorted(map(int, written(spark, tmp_path))) == list(range(300))


def test_exactly_once_needs_leveret(options: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError, match="option guarantee: exactly-once needs Leveret"):
        write(
            options["url"],
            batch_of(body=[b"1"]),
            protocol="1.0",
            routingKey=name,
            txnAppId="a",
            txnVersion=1,
            guarantee="exactly-once",
        )

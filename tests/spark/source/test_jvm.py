"""The data source in the JVM: `readStream.format("amqp-jvm")`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from tests.client.tls import authority, secure, tls_url  # noqa: F401 - fixtures
from tests.docs.pages import DOCS, blocks
from tests.security.certificates import Authority
from tests.spark.support import TIMEOUT, bodies, declare_stream, numbers, publish, start
from tests.support.broker import LeveretProcess, free_port
from tests.support.polling import wait_until
from tests.support.proxy import Proxy
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.usefixtures("jar")

EARLIEST: dict[str, Any] = {"startingOffsets": "earliest"}


def follow(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.readStream.format("amqp-jvm").options(url=url, **options).load()


def copy(spark: SparkSession, url: str, directory: Path, *, available_now: bool = True, **options: Any) -> StreamingQuery:
    """Start a query that writes Parquet files to the directory, with its checkpoint there too."""
    writer = follow(spark, url, **options).writeStream.format("parquet").option("path", str(directory / "out"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(**({"availableNow": True} if available_now else {"processingTime": "0 seconds"})).start()


def copied(spark: SparkSession, directory: Path) -> list[str]:
    return bodies(spark.read.parquet(str(directory / "out")))


def finish(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(TIMEOUT)
    return query


def read_by(query: StreamingQuery) -> int:
    """Return the number of messages in finished batches."""
    assert query.isActive, query.exception()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def failure(query: StreamingQuery) -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(TIMEOUT)
    return str(caught.value)


def test_a_query_continues_from_its_checkpoint(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 500))
    query = finish(copy(spark, broker.url(), tmp_path, stream=name, maxMessagesPerTrigger=200, **EARLIEST))
    assert [progress["numInputRows"] for progress in query.recentProgress] == [200, 200, 100]
    assert [progress["sources"][0]["metrics"]["lag"] for progress in query.recentProgress] == ["300", "100", "0"]
    publish(connection, name, [b"x" * (3 << 20), *numbers(501, 6000)])
    finish(copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST))
    assert copied(spark, tmp_path) == [*numbers(0, 500), "x" * (3 << 20), *numbers(501, 6000)]
    # Both formats have the same offsets.
    publish(connection, name, numbers(6000, 6010))
    finish(start(spark, broker.url(), tmp_path, stream=name, columns="body,offset", **EARLIEST))
    publish(connection, name, numbers(6010, 6020))
    finish(copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST))
    assert copied(spark, tmp_path)[6000:] == numbers(6000, 6020)


def test_the_columns_of_messages(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-dead", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name})
    before = time.time()
    publish(connection, name, [b"", b"\0\xff"], headers={"k": "v" * 1000})
    publish(connection, f"{name}-dead", ["dead"], expiration=0)
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["next_offset"] == 3)
    frame = follow(spark, broker.url(), stream=name, **EARLIEST)
    query = frame.selectExpr("timestamp", "offset", "routing_key", "body").writeStream.format("memory").queryName("columns")
    finish(query.trigger(availableNow=True).start())
    rows = sorted(spark.sql("SELECT offset, routing_key, body, CAST(timestamp AS DOUBLE) AS time FROM columns").collect())
    assert [(row.offset, row.routing_key, bytes(row.body)) for row in rows] == [
        (0, name, b""),
        (1, name, b"\0\xff"),
        (2, name, b"dead"),
    ]
    assert all(before - 1 < row.time < time.time() + 1 for row in rows)


def test_a_running_query_resumes_after_a_kill(
    spark: SparkSession, own_broker: LeveretProcess, name: str, tmp_path: Path
) -> None:
    with sync.connect(own_broker.url()) as connection:
        declare_stream(connection, name)
        publish(connection, name, numbers(0, 100))
        query = copy(spark, own_broker.url(), tmp_path, available_now=False, stream=name, consumerName="c", **EARLIEST)
        wait_until(lambda: read_by(query) == 100, "the first batch", within=TIMEOUT)
    own_broker.kill()
    own_broker.start()
    with sync.connect(own_broker.url()) as connection:
        for first in range(100, 200, 20):
            publish(connection, name, numbers(first, first + 20))
        wait_until(lambda: read_by(query) == 200, "the last batch", within=TIMEOUT)
        with connection.channel() as channel:
            assert ask(channel, "stream.lag", stream=name, consumer="c")["next_offset"] >= 100
    query.stop()
    assert query.exception() is None
    assert copied(spark, tmp_path) == numbers(0, 200)


def test_a_running_query_resumes_over_another_host(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 100))
    proxy = Proxy(broker)
    # The first one of these never answers.
    hosts = f"127.0.0.1:{free_port()}, {broker.host}:{broker.port}"
    query = copy(spark, proxy.url(), tmp_path, available_now=False, stream=name, hosts=hosts, **EARLIEST)
    wait_until(lambda: read_by(query) == 100, "the first batch", within=TIMEOUT)
    assert proxy.accepted > 0
    proxy.stop()
    publish(connection, name, numbers(100, 200))
    wait_until(lambda: read_by(query) == 200, "the last batch", within=TIMEOUT)
    query.stop()
    assert query.exception() is None
    assert copied(spark, tmp_path) == numbers(0, 200)


def test_real_time_mode(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    output = tmp_path / "output"
    output.touch()

    def write(row: Any) -> None:
        with output.open("a") as file:
            file.write(f"{row.body}\n")

    frame = follow(spark, broker.url(), stream=name, **EARLIEST).selectExpr("CAST(body AS STRING) AS body")
    writer = (
        frame.writeStream.foreach(write).outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    real_time: dict[str, Any] = {"realTime": "5 seconds"}  # PySpark's overloads lack it
    query = writer.trigger(**real_time).start()

    def received() -> list[str]:
        assert query.isActive, query.exception()
        return output.read_text().split()

    try:
        wait_until(lambda: received() == numbers(0, 10), "the first messages", within=TIMEOUT)
        publish(connection, name, numbers(10, 20))
        wait_until(lambda: received() == numbers(0, 20), "further messages", within=TIMEOUT)
        wait_until(lambda: len(query.recentProgress) > 1, "two batches", within=TIMEOUT)
        ends = [json.loads(progress["sources"][0]["endOffset"]) for progress in query.recentProgress]
        assert all(end["began"] == {name: 0} for end in ends) and ends[1]["streams"][name]["next"] == 20
    finally:
        query.stop()


def test_the_example_runs(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 3))
    (block,) = blocks(DOCS / "spark-jvm.md", "python")
    source = block.text.replace("amqp://guest:guest@localhost:5672/", broker.url())
    source = source.replace('"stream", "orders"', f'"stream", "{name}"')
    source = source.replace('"tables/', f'"{tmp_path}/tables/').replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
    exec(compile(source, "follow_orders.py", "exec"), {"__name__": "__docs__"})
    assert bodies(spark.read.parquet(str(tmp_path / "tables" / "orders"))) == numbers(0, 3)


def test_lost_messages(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    finish(copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST))
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] > 1)
        first = ask(channel, "stream.describe", stream=name)["first_offset"]
    text = failure(copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST))
    assert f"{first - 1} messages, from offset 1 to {first - 1}, were removed by retention before they were read" in text
    finish(copy(spark, broker.url(), tmp_path, stream=name, failOnDataLoss="false", **EARLIEST))
    assert len(copied(spark, tmp_path)) == 1 + 13 - first


def test_a_stream_that_was_declared_again(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, ["a"])
    finish(copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST))
    with connection.channel() as channel:
        channel.delete_queue(name)
    declare_stream(connection, name)
    publish(connection, name, ["a", "b"])
    assert f"another stream '{name}': it was deleted and declared again" in failure(
        copy(spark, broker.url(), tmp_path, stream=name, **EARLIEST)
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": "s", "columns": "body"}, "option 'columns' is not valid in format amqp-jvm"),
        *[
            ({"stream": "s", "hosts": f"other, {host}"}, "option hosts: address 2 is invalid; expected host or host:port")
            for host in ("", "third:port", "u:pa55@third", "amqp://third", "third/vhost", "third?x=y")
        ],
        ({"startingOffsets": "earliest"}, "option stream: required"),
        ({"stream": "s"}, "option consumerName: required if a query begins with the latest messages"),
        (
            {"stream": "s", "startingOffsets": '{"t": 3}'},
            "option startingOffsets: .* is invalid; expected earliest",
        ),
        ({"stream": "s", "maxMessagesPerTrigger": "0", **EARLIEST}, "maxMessagesPerTrigger: '0' is invalid"),
        ({"stream": "s", "tls.verify": "false", **EARLIEST}, "without TLS; expected amqps: in option url"),
        (
            {"stream": "s", "url": "http://guest:pa55@localhost", **EARLIEST},
            "option url: the value is invalid",
        ),
    ],
)
def test_invalid_options(spark: SparkSession, options: dict[str, str], text: str) -> None:
    from pyspark.errors import IllegalArgumentException

    with pytest.raises(IllegalArgumentException, match=text) as caught:
        spark.readStream.format("amqp-jvm").options(**options).load()
    assert "pa55" not in str(caught.value)


def test_refused_logins_are_not_repeated(spark: SparkSession, broker: LeveretProcess, tmp_path: Path) -> None:
    for number, (url, text) in enumerate(
        [
            (broker.url(password="wrong"), r"no connection to amqp://127\.0\.0\.1:\d+: ACCESS_REFUSED"),
            (broker.url(vhost="missing"), r"no connection to amqp://127\.0\.0\.1:\d+: .*reply-code=530"),
        ]
    ):
        text_of = failure(copy(spark, url, tmp_path / str(number), stream="orders", **EARLIEST))
        assert re.search(text, text_of) and "wrong" not in text_of
    missing = copy(spark, broker.url(), tmp_path / "2", stream="orders", passwordFile=str(tmp_path / "no"), **EARLIEST)
    assert "option passwordFile" in failure(missing)


def test_tls_verifies_the_broker(
    spark: SparkSession,
    secure: LeveretProcess,  # noqa: F811
    authority: Authority,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    with sync.connect(secure.url()) as connection:
        declare_stream(connection, name)
        publish(connection, name, ["a"])
    password = tmp_path / "password"
    password.write_text("guest\n")
    options: dict[str, Any] = {"stream": name, **EARLIEST}
    url = tls_url(secure).replace(":guest@", "@")
    trusted: dict[str, Any] = {"tls.caFile": str(authority.path), "passwordFile": str(password)}
    finish(copy(spark, url, tmp_path, **trusted, **options))
    assert copied(spark, tmp_path) == ["a"]
    assert "unable to find valid certification path" in failure(copy(spark, tls_url(secure), tmp_path, **options))
